//! What must stand in the environment of a process before it loads NIXL.
//!
//! NIXL and the UCX inside its wheel read these variables when they are loaded, and the environment of a running process cannot
//! be changed safely. So whoever starts a process sets them ([`environment`]), and the process looks ([`check`]).

use std::{ffi::OsString, fmt};

use super::{Machine, Nixl, entries};

/// One variable that a process which loads NIXL should have.
struct Variable {
    name: &'static str,
    /// What this machine and this NIXL call for; `None` where that is nothing.
    value: fn(&Machine<'_>, &Nixl) -> Option<OsString>,
    /// What happens without it; `None` where it is only a comfort.
    without: Option<&'static str>,
}

const VARIABLES: [Variable; 3] = [
    // The wheel's UCX opens its InfiniBand module on every machine. Where there is no RDMA device, a destructor of the libnl that
    // is bundled with it then crashes inside `exit`, in every process that made a UCX backend.
    Variable {
        name: "UCX_MODULES",
        value: |machine, nixl| (is_wheel(nixl) && !has_rdma(machine)).then(|| "^ib".into()),
        without: Some("it crashes at its end"),
    },
    // NIXL looks beside its library by itself; this tells others where that is, such as who says why a backend did not load.
    Variable { name: "NIXL_PLUGIN_DIR", value: |_, nixl| Some(nixl.plugins.as_ref()?.into()), without: None },
    // Below errors NIXL writes to standard error what it tries and what is not there, among the lines of the process.
    Variable { name: "NIXL_LOG_LEVEL", value: |_, _| Some("ERROR".into()), without: None },
];

/// Whether NIXL comes from a wheel, and so with a UCX of its own.
fn is_wheel(nixl: &Nixl) -> bool {
    nixl.library.iter().any(|part| part.as_encoded_bytes().ends_with(b".mesonpy.libs"))
}

fn has_rdma(machine: &Machine<'_>) -> bool {
    !entries(&machine.at("/sys/class/infiniband")).is_empty()
}

/// The variables that this process does not have, with the values that this machine and this NIXL call for.
fn lacking<'a>(machine: &'a Machine<'_>, nixl: &'a Nixl) -> impl Iterator<Item = (&'static Variable, OsString)> + 'a {
    let unset = VARIABLES.iter().filter(|variable| machine.set(variable.name).is_none());
    unset.filter_map(|variable| Some((variable, (variable.value)(machine, nixl)?)))
}

/// What a process that will load `nixl` needs in its environment and would not inherit from this one: to be set when it is
/// started.
///
/// A variable that is set already stays as it is. May name
///
/// | variable | value | where | because |
/// | --- | --- | --- | --- |
/// | `UCX_MODULES` | `^ib` | no RDMA device, and a NIXL that brings its own UCX (a wheel) | the process crashes at its end otherwise |
/// | `NIXL_PLUGIN_DIR` | [`Nixl::plugins`] | there are plugins beside the library | what fails can be told by its file |
/// | `NIXL_LOG_LEVEL` | `ERROR` | everywhere | the process speaks for itself |
pub fn environment(machine: &Machine<'_>, nixl: &Nixl) -> Vec<(&'static str, OsString)> {
    lacking(machine, nixl).map(|(variable, value)| (variable.name, value)).collect()
}

/// Whether this process may load `nixl`: that it was started with all of [`environment`] that is more than a comfort.
///
/// # Errors
/// [`Missing`], with each variable and the value to set.
pub fn check(machine: &Machine<'_>, nixl: &Nixl) -> Result<(), Missing> {
    let required = lacking(machine, nixl)
        .filter_map(|(variable, value)| Some(Lack { name: variable.name, value, without: variable.without? }));
    let lacks: Vec<_> = required.collect();
    if lacks.is_empty() { Ok(()) } else { Err(Missing(lacks)) }
}

/// The environment variables that this process was started without and must not load NIXL without.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}", list(.0))]
pub struct Missing(Vec<Lack>);

#[derive(Clone, Debug, PartialEq, Eq)]
struct Lack {
    name: &'static str,
    value: OsString,
    without: &'static str,
}

impl fmt::Display for Lack {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "set {}={} before this process starts, or {}", self.name, self.value.display(), self.without)
    }
}

fn list(lacks: &[Lack]) -> String {
    lacks.iter().map(Lack::to_string).collect::<Vec<_>>().join("; ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::find::{Origin, find, tests::on};
    use std::fs;

    const WHEEL: &str = "/venv/.nixl_cu12.mesonpy.libs";
    const BUILT: &str = "/opt/nvidia/nvda_nixl/lib64";
    const IB: (&str, &str) = ("UCX_MODULES", "^ib");
    const LOG: (&str, &str) = ("NIXL_LOG_LEVEL", "ERROR");

    /// What a process with these variables gets for the NIXL in `folder`, and what `check` says to it; with or without an RDMA
    /// device.
    fn needed(folder: &str, variables: &[(&str, &str)], rdma: bool) -> (Vec<(&'static str, OsString)>, Option<String>) {
        let setting = (crate::SETTING, folder);
        let mut seen = None;
        on(&[folder], &[&[setting], variables].concat(), |machine| {
            let devices = machine.at("/sys/class/infiniband");
            fs::create_dir_all(if rdma { devices.join("mlx5_0") } else { devices }).unwrap();
            let nixl = find(machine).unwrap();
            assert_eq!(nixl.plugins, None);
            let missing = check(machine, &nixl).err();
            seen = Some((environment(machine, &nixl), missing.map(|missing| missing.to_string())));
        });
        seen.unwrap()
    }

    fn set(variables: &[(&'static str, &str)]) -> Vec<(&'static str, OsString)> {
        variables.iter().map(|(name, value)| (*name, value.into())).collect()
    }

    #[test]
    fn a_wheel_without_rdma_must_not_open_its_infiniband_module() {
        let (environment, missing) = needed(WHEEL, &[], false);
        assert_eq!(environment, set(&[IB, LOG]));
        assert_eq!(missing.as_deref(), Some("set UCX_MODULES=^ib before this process starts, or it crashes at its end"));
    }

    #[test]
    fn the_infiniband_module_stays_where_there_is_rdma_and_where_ucx_is_the_systems() {
        for (folder, rdma) in [(WHEEL, true), (BUILT, false), (BUILT, true)] {
            assert_eq!(needed(folder, &[], rdma), (set(&[LOG]), None), "{folder}, {rdma}");
        }
    }

    #[test]
    fn what_is_set_stays_and_an_empty_value_counts_as_absent() {
        assert_eq!(needed(WHEEL, &[("UCX_MODULES", "^ib,cuda"), ("NIXL_LOG_LEVEL", "TRACE")], false), (vec![], None));
        // The log level is a comfort: a process runs without.
        assert_eq!(needed(WHEEL, &[IB], false), (set(&[LOG]), None));
        let (environment, missing) = needed(WHEEL, &[("UCX_MODULES", ""), LOG], false);
        assert_eq!((environment, missing.is_some()), (set(&[IB]), true));
    }

    #[test]
    fn the_plugins_are_named_where_they_are_and_not_asked_for() {
        on(&[BUILT], &[], |machine| {
            let plugins = machine.at(BUILT).join("plugins");
            fs::create_dir(&plugins).unwrap();
            let nixl = find(machine).unwrap();
            assert_eq!(environment(machine, &nixl), [("NIXL_PLUGIN_DIR", plugins.into()), (LOG.0, LOG.1.into())]);
            assert_eq!(check(machine, &nixl), Ok(()));
        });
    }

    #[test]
    fn a_wheel_that_xtask_fetched_is_a_wheel() {
        on(&["/checkout/target/nixl/.nixl_cu13.mesonpy.libs"], &[], |machine| {
            let nixl = find(machine).unwrap();
            assert_eq!(nixl.origin, Origin::Fetched);
            assert!(check(machine, &nixl).is_err());
        });
    }
}
