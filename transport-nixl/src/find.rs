//! Where this machine has NIXL, and what a process needs before it may load it.

mod environment;

pub use environment::{Missing, check, environment};

use std::{
    env::{self, consts::ARCH},
    ffi::OsString,
    fs,
    path::{Path, PathBuf},
};

/// The file that NIXL's C interface lives in.
pub const LIBRARY: &str = "libnixl_capi.so";
/// The environment variable that says where NIXL is: the folder of [`LIBRARY`], or that file, as an absolute path.
pub const SETTING: &str = "KVLEASE_NIXL";

/// The wheels of the Python package index keep their libraries here, beside the package.
const WHEELS: [&str; 2] = [".nixl_cu12.mesonpy.libs", ".nixl_cu13.mesonpy.libs"];

/// What [`find`] may see of a machine. A test gives it another environment and another root.
pub struct Machine<'a> {
    /// Reads an environment variable.
    pub variable: &'a dyn Fn(&str) -> Option<OsString>,
    /// The folder that stands for `/`.
    pub root: &'a Path,
    /// The running executable, where it is known.
    pub executable: Option<PathBuf>,
}

impl Machine<'_> {
    /// The machine and environment that this process runs in.
    pub fn this() -> Self {
        Self { variable: &|name| env::var_os(name), root: Path::new("/"), executable: env::current_exe().ok() }
    }

    fn at(&self, path: impl AsRef<Path>) -> PathBuf {
        let path = path.as_ref();
        self.root.join(path.strip_prefix("/").unwrap_or(path))
    }

    /// An environment variable; an empty one counts as absent.
    fn set(&self, name: &str) -> Option<PathBuf> {
        (self.variable)(name).filter(|value| !value.is_empty()).map(PathBuf::from)
    }
}

/// A NIXL library on this machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Nixl {
    /// The absolute path of [`LIBRARY`].
    pub library: PathBuf,
    /// The folder of its plugins, where there is one beside the library: NIXL looks there, unless `NIXL_PLUGIN_DIR` names another.
    pub plugins: Option<PathBuf>,
    /// By which way it was found.
    pub origin: Origin,
}

/// How a NIXL library was found. Listed in the order of precedence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// [`SETTING`] names it.
    Setting,
    /// NIXL is installed where the system's loader looks, or where NIXL's own installer puts it.
    Installed,
    /// The active Python environment has the wheel.
    Wheel,
    /// `cargo xtask` fetched it for the checkout that the running executable was built in.
    Fetched,
}

/// Why there is no NIXL.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotFound {
    /// The setting names a place without the library. No other place is looked at, lest a typing error pick another NIXL.
    #[error(
        "{SETTING} is {given:?}, where there is no {LIBRARY}: set it to the absolute path of the folder that holds that file, or unset it"
    )]
    Setting {
        /// Its value.
        given: PathBuf,
    },
    /// Nowhere.
    #[error(
        "no NIXL on this machine: run `pip install --no-deps nixl-cu12` in a Python virtual environment and activate it, or set {SETTING} to the folder that holds {LIBRARY}; in a checkout, run `cargo xtask nixl`"
    )]
    Nowhere,
}

/// Looks for NIXL: what [`SETTING`] names, then an installed one, then the wheel in the active Python environment, then the
/// one that `cargo xtask nixl` fetched.
///
/// Looks at files only and loads nothing.
///
/// # Errors
/// One sentence on how to get it.
pub fn find(machine: &Machine<'_>) -> Result<Nixl, NotFound> {
    if let Some(given) = machine.set(SETTING) {
        let folder = if given.ends_with(LIBRARY) { given.parent().unwrap_or(&given) } else { &given };
        let nixl = folder.is_absolute().then(|| in_folder(machine.at(folder), Origin::Setting)).flatten();
        return nixl.ok_or(NotFound::Setting { given });
    }
    let installed = library_folders(machine).into_iter().map(|folder| (folder, Origin::Installed));
    let wheels = wheel_folders(machine).into_iter().map(|folder| (folder, Origin::Wheel));
    let fetched = fetched_folders(machine).into_iter().map(|folder| (folder, Origin::Fetched));
    installed.chain(wheels).chain(fetched).find_map(|(folder, origin)| in_folder(folder, origin)).ok_or(NotFound::Nowhere)
}

fn in_folder(folder: PathBuf, origin: Origin) -> Option<Nixl> {
    let library = folder.join(LIBRARY);
    let plugins = folder.join("plugins");
    library.is_file().then(|| Nixl { library, plugins: plugins.is_dir().then_some(plugins), origin })
}

/// The loader's folders in its order, then the prefixes of NIXL's own installer.
fn library_folders(machine: &Machine<'_>) -> Vec<PathBuf> {
    let path = machine.set("LD_LIBRARY_PATH").unwrap_or_default();
    let mut folders: Vec<PathBuf> = env::split_paths(&path).filter(|folder| folder.is_absolute()).collect();
    folders.extend(loader_folders(machine));
    for prefix in ["/usr/local", "/usr", "/opt/nvidia/nvda_nixl", "/usr/local/nixl"] {
        folders.extend(
            [format!("{prefix}/lib/{ARCH}-linux-gnu"), format!("{prefix}/lib64"), format!("{prefix}/lib")].map(PathBuf::from),
        );
    }
    folders.iter().map(|folder| machine.at(folder)).collect()
}

/// What `ldconfig` is told to index.
fn loader_folders(machine: &Machine<'_>) -> Vec<PathBuf> {
    let mut files = vec![machine.at("/etc/ld.so.conf")];
    files.extend(
        entries(&machine.at("/etc/ld.so.conf.d")).into_iter().filter(|file| file.extension().is_some_and(|e| e == "conf")),
    );
    let texts = files.iter().filter_map(|file| fs::read_to_string(file).ok());
    texts
        .flat_map(|text| text.lines().map(str::trim).filter(|line| line.starts_with('/')).map(PathBuf::from).collect::<Vec<_>>())
        .collect()
}

fn wheel_folders(machine: &Machine<'_>) -> Vec<PathBuf> {
    let prefixes =
        ["VIRTUAL_ENV", "CONDA_PREFIX"].into_iter().filter_map(|name| machine.set(name)).filter(|prefix| prefix.is_absolute());
    let pythons = prefixes
        .flat_map(|prefix| entries(&machine.at(prefix).join("lib")))
        .filter(|folder| folder.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(b"python3")));
    pythons.flat_map(|python| WHEELS.map(|wheel| python.join("site-packages").join(wheel))).collect()
}

/// Beside the folder `release` that the executable lies in, or else its folder `deps` or `examples`. By that name only: an
/// executable in `/tmp/x` must not load what somebody else put into `/tmp/nixl`.
fn fetched_folders(machine: &Machine<'_>) -> Vec<PathBuf> {
    let above = machine.executable.iter().flat_map(|executable| executable.ancestors().skip(1).take(2));
    let targets = above.filter(|folder| folder.ends_with("release")).filter_map(Path::parent);
    targets.flat_map(|target| WHEELS.map(|wheel| machine.at(target).join("nixl").join(wheel))).collect()
}

/// A folder's entries in a fixed order; none if it cannot be read.
fn entries(folder: &Path) -> Vec<PathBuf> {
    let mut entries: Vec<_> = fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path()).collect();
    entries.sort();
    entries
}

#[cfg(test)]
mod tests {
    use super::*;

    const VENV: &str = "/venv/lib/python3.12/site-packages/.nixl_cu12.mesonpy.libs";
    const LIB: &str = "/usr/local/lib";

    const FETCHED: &str = "/checkout/target/nixl/.nixl_cu12.mesonpy.libs";
    const EXECUTABLE: &str = "/checkout/target/release/kvlease-peer-nixl";

    /// A machine that has the library in these folders, and these variables, where [`EXECUTABLE`] runs.
    pub(super) fn on(folders: &[&str], variables: &[(&str, &str)], check: impl FnOnce(&mut Machine<'_>)) {
        let root = tempfile::tempdir().unwrap();
        let variable = |name: &str| variables.iter().find(|(known, _)| *known == name).map(|(_, value)| value.into());
        let mut machine = Machine { variable: &variable, root: root.path(), executable: Some(EXECUTABLE.into()) };
        for folder in folders {
            fs::create_dir_all(machine.at(folder)).unwrap();
            fs::write(machine.at(folder).join(LIBRARY), "").unwrap();
        }
        check(&mut machine);
    }

    fn found(machine: &Machine<'_>, folder: &str, origin: Origin) {
        let nixl = find(machine).unwrap();
        assert_eq!((nixl.library, nixl.origin), (machine.at(folder).join(LIBRARY), origin));
    }

    #[test]
    fn the_setting_comes_first_then_the_installed_one_then_the_wheel_then_the_fetched_one() {
        let venv = ("VIRTUAL_ENV", "/venv");
        on(&[VENV, LIB, "/mine"], &[venv, (SETTING, "/mine")], |m| found(m, "/mine", Origin::Setting));
        on(&[VENV, LIB, "/mine"], &[venv, (SETTING, "/mine/libnixl_capi.so")], |m| found(m, "/mine", Origin::Setting));
        on(&[VENV, LIB], &[venv, (SETTING, "")], |m| found(m, LIB, Origin::Installed));
        on(&[FETCHED, VENV], &[venv], |m| found(m, VENV, Origin::Wheel));
        on(&[FETCHED, VENV], &[], |m| found(m, FETCHED, Origin::Fetched));
    }

    #[test]
    fn what_xtask_fetched_is_found_by_every_executable_of_that_checkout_and_by_no_other() {
        on(&[FETCHED, "/tmp/nixl/.nixl_cu12.mesonpy.libs"], &[], |m| {
            for name in ["kvlease", "deps/live-0123456789abcdef", "examples/lease"] {
                m.executable = Some(format!("/checkout/target/release/{name}").into());
                found(m, FETCHED, Origin::Fetched);
            }
            for other in ["/tmp/x", "/tmp/x/y", "/tmp/x/y/z", "/checkout/target/release/build/x/y", "/checkout/x", "release"] {
                m.executable = Some(other.into());
                assert_eq!(find(m), Err(NotFound::Nowhere), "{other}");
            }
            m.executable = None;
            assert_eq!(find(m), Err(NotFound::Nowhere));
        });
    }

    #[test]
    fn the_installed_one_is_found_where_the_loader_looks() {
        on(&["/a", LIB], &[("LD_LIBRARY_PATH", "/none:relative:/a")], |m| found(m, "/a", Origin::Installed));
        on(&["/opt/nvidia/nvda_nixl/lib64"], &[], |m| found(m, "/opt/nvidia/nvda_nixl/lib64", Origin::Installed));
        on(&["/from/conf"], &[], |m| {
            assert_eq!(find(m), Err(NotFound::Nowhere));
            fs::create_dir_all(m.at("/etc/ld.so.conf.d")).unwrap();
            fs::write(m.at("/etc/ld.so.conf.d/nixl.conf"), "# NIXL\n  /from/conf\n").unwrap();
            found(m, "/from/conf", Origin::Installed);
        });
    }

    #[test]
    fn the_wheel_is_found_in_either_kind_of_environment_and_for_either_cuda() {
        let conda = "/conda/lib/python3.11/site-packages/.nixl_cu13.mesonpy.libs";
        on(&[conda], &[("CONDA_PREFIX", "/conda")], |m| found(m, conda, Origin::Wheel));
        on(&[VENV, conda], &[("CONDA_PREFIX", "/conda"), ("VIRTUAL_ENV", "/venv")], |m| found(m, VENV, Origin::Wheel));
        // An environment that is not active does not count.
        on(&[VENV, conda], &[], |m| assert_eq!(find(m), Err(NotFound::Nowhere)));
    }

    #[test]
    fn plugins_are_named_where_they_are() {
        on(&[LIB], &[], |m| {
            assert_eq!(find(m).unwrap().plugins, None);
            fs::create_dir(m.at(LIB).join("plugins")).unwrap();
            assert_eq!(find(m).unwrap().plugins, Some(m.at(LIB).join("plugins")));
        });
    }

    #[test]
    fn a_setting_that_names_nothing_is_an_error_even_if_another_nixl_is_there() {
        for given in ["/typo", "/typo/libnixl_capi.so", "libnixl_capi.so", "usr/local/lib"] {
            on(&[LIB], &[(SETTING, given)], |m| assert_eq!(find(m), Err(NotFound::Setting { given: given.into() })));
        }
        assert_eq!(
            NotFound::Setting { given: "/typo".into() }.to_string(),
            "KVLEASE_NIXL is \"/typo\", where there is no libnixl_capi.so: set it to the absolute path of the folder that holds that file, or unset it"
        );
    }
}
