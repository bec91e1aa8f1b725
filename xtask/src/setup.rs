//! What a build needs beside Rust, and how to get it.

use std::{env, fmt, os::unix::fs::PermissionsExt as _, path::Path};

use crate::steps::Step;

/// Something that is not Rust's and comes with the system's packages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Tool {
    /// The linker, and the vendored UCX's compiler.
    Cc,
    /// The vendored UCX is built with it.
    Make,
    /// nixl-sys compiles its shim with it, under this very name.
    Cxx,
    /// Fetches what comes as a wheel.
    Pip,
    /// Makes virtual environments; Debian keeps it apart from Python.
    Venv,
}

/// What everything here is built with.
pub(crate) const BUILD: [Tool; 2] = [Tool::Cc, Tool::Make];

impl Tool {
    /// Whether it can be used.
    pub(crate) fn is_there(self) -> bool {
        let python = |args: &[&str]| Step::new("looking for Python", "python3", args).succeeds();
        match self {
            Self::Cc => is_there("cc"),
            Self::Make => is_there("make"),
            Self::Cxx => is_there("g++"),
            Self::Pip => python(&["-m", "pip", "--version"]),
            Self::Venv => python(&["-c", "import ensurepip, venv"]),
        }
    }
}

impl fmt::Display for Tool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Cc => "cc",
            Self::Make => "make",
            Self::Cxx => "g++",
            Self::Pip => "python3 with pip",
            Self::Venv => "python3 with venv",
        })
    }
}

/// Whether a program can be started by its name.
pub(crate) fn is_there(program: &str) -> bool {
    let runs = |file: &Path| file.metadata().is_ok_and(|meta| meta.is_file() && meta.permissions().mode() & 0o111 != 0);
    env::var_os("PATH").is_some_and(|path| env::split_paths(&path).any(|folder| runs(&folder.join(program))))
}

/// A system's package manager, as far as it is known here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Packages {
    /// Debian, Ubuntu and their kin.
    Apt,
    /// Fedora, RHEL and their kin.
    Dnf,
    /// Another one.
    Unknown,
}

impl Packages {
    /// The one that this machine has.
    pub(crate) fn of_this_machine() -> Self {
        match (is_there("apt-get"), is_there("dnf")) {
            (true, _) => Self::Apt,
            (_, true) => Self::Dnf,
            _ => Self::Unknown,
        }
    }

    fn commands(self, missing: &[Tool]) -> Vec<Vec<&'static str>> {
        let apt = |tool: &Tool| match tool {
            Tool::Cc | Tool::Make | Tool::Cxx => "build-essential",
            Tool::Pip => "python3-pip",
            Tool::Venv => "python3-venv",
        };
        let dnf = |tool: &Tool| match tool {
            Tool::Cc => "gcc",
            Tool::Make => "make",
            Tool::Cxx => "gcc-c++",
            Tool::Pip => "python3-pip",
            Tool::Venv => "python3",
        };
        let mut packages: Vec<_> = match self {
            Self::Apt => missing.iter().map(apt).collect(),
            Self::Dnf => missing.iter().map(dnf).collect(),
            Self::Unknown => return vec![],
        };
        packages.dedup();
        match self {
            Self::Apt => vec![vec!["apt-get", "update"], [vec!["apt-get", "install", "--yes"], packages].concat()],
            _ => vec![[vec!["dnf", "install", "--assumeyes"], packages].concat()],
        }
    }
}

/// What to do before a build can start.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Plan {
    /// Nothing.
    Ready,
    /// Run these commands, one after the other.
    Install(Vec<Vec<&'static str>>),
    /// Stop, and tell the user this.
    Tell(String),
}

/// Plans how to get what is missing. Installs only as root or when the user said so.
pub(crate) fn plan(missing: &[Tool], packages: Packages, root: bool, install: bool) -> Plan {
    if missing.is_empty() {
        return Plan::Ready;
    }
    let commands = packages.commands(missing);
    let commands: Vec<_> = match root {
        true => commands,
        false => commands.into_iter().map(|command| [vec!["sudo"], command].concat()).collect(),
    };
    let missing = listed(missing);
    if commands.is_empty() {
        Plan::Tell(format!("missing {missing}: install it with this system's package manager, then run this again"))
    } else if root || install {
        Plan::Install(commands)
    } else {
        let line: Vec<_> = commands.iter().map(|command| command.join(" ")).collect();
        Plan::Tell(format!("missing {missing}: run this, or pass --install:\n{}", line.join(" && ")))
    }
}

/// `cc and make`.
pub(crate) fn listed(tools: &[Tool]) -> String {
    tools.iter().map(Tool::to_string).collect::<Vec<_>>().join(" and ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use Tool::{Cc, Cxx, Make, Pip, Venv};

    #[test]
    fn nothing_is_done_where_nothing_is_missing() {
        for packages in [Packages::Apt, Packages::Dnf, Packages::Unknown] {
            assert_eq!(plan(&[], packages, true, true), Plan::Ready);
        }
    }

    #[test]
    fn root_installs_and_says_no_sudo() {
        let expected = vec![vec!["apt-get", "update"], vec!["apt-get", "install", "--yes", "build-essential"]];
        assert_eq!(plan(&[Make], Packages::Apt, true, false), Plan::Install(expected.clone()));
        assert_eq!(plan(&[Make], Packages::Apt, true, true), Plan::Install(expected));
    }

    #[test]
    fn others_install_only_when_told_to() {
        let expected = vec![vec!["sudo", "dnf", "install", "--assumeyes", "make", "gcc-c++"]];
        assert_eq!(plan(&[Make, Cxx], Packages::Dnf, false, true), Plan::Install(expected));
        assert_eq!(
            plan(&[Cc, Make], Packages::Apt, false, false),
            Plan::Tell(
                "missing cc and make: run this, or pass --install:\nsudo apt-get update && sudo apt-get install --yes build-essential"
                    .into()
            )
        );
    }

    #[test]
    fn each_package_is_named_once() {
        let Plan::Tell(text) = plan(&[Cc, Make, Cxx, Pip, Venv], Packages::Apt, false, false) else { panic!("told") };
        assert!(text.starts_with("missing cc and make and g++ and python3 with pip and python3 with venv: "), "{text}");
        assert!(text.ends_with("apt-get install --yes build-essential python3-pip python3-venv"), "{text}");
    }

    #[test]
    fn an_unknown_system_is_told_what_is_missing_even_as_root() {
        let Plan::Tell(text) = plan(&[Make], Packages::Unknown, true, true) else { panic!("nothing to install with") };
        assert!(text.starts_with("missing make: "));
    }
}
