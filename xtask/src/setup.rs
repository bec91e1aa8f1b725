//! What a build needs beside Rust, and how to get it.

use std::{env, os::unix::fs::PermissionsExt as _, path::Path};

/// What the vendored UCX is built with.
pub(crate) const NEEDED: [&str; 2] = ["cc", "make"];

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

    fn commands(self) -> &'static [&'static [&'static str]] {
        match self {
            Self::Apt => &[&["apt-get", "update"], &["apt-get", "install", "--yes", "build-essential"]],
            Self::Dnf => &[&["dnf", "install", "--assumeyes", "gcc", "make"]],
            Self::Unknown => &[],
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
pub(crate) fn plan(missing: &[&str], packages: Packages, root: bool, install: bool) -> Plan {
    if missing.is_empty() {
        return Plan::Ready;
    }
    let commands = packages.commands().iter();
    let commands: Vec<_> = match root {
        true => commands.map(|command| command.to_vec()).collect(),
        false => commands.map(|command| [&["sudo"], *command].concat()).collect(),
    };
    let missing = missing.join(" and ");
    if commands.is_empty() {
        Plan::Tell(format!("missing {missing}: install it with this system's package manager, then run this again"))
    } else if root || install {
        Plan::Install(commands)
    } else {
        let line: Vec<_> = commands.iter().map(|command| command.join(" ")).collect();
        Plan::Tell(format!("missing {missing}: run this, or pass --install:\n{}", line.join(" && ")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_done_where_nothing_is_missing() {
        for packages in [Packages::Apt, Packages::Dnf, Packages::Unknown] {
            assert_eq!(plan(&[], packages, true, true), Plan::Ready);
        }
    }

    #[test]
    fn root_installs_and_says_no_sudo() {
        let expected = vec![vec!["apt-get", "update"], vec!["apt-get", "install", "--yes", "build-essential"]];
        assert_eq!(plan(&["make"], Packages::Apt, true, false), Plan::Install(expected.clone()));
        assert_eq!(plan(&["make"], Packages::Apt, true, true), Plan::Install(expected));
    }

    #[test]
    fn others_install_only_when_told_to() {
        let expected = vec![vec!["sudo", "dnf", "install", "--assumeyes", "gcc", "make"]];
        assert_eq!(plan(&["make"], Packages::Dnf, false, true), Plan::Install(expected));
        assert_eq!(
            plan(&["cc", "make"], Packages::Apt, false, false),
            Plan::Tell(
                "missing cc and make: run this, or pass --install:\nsudo apt-get update && sudo apt-get install --yes build-essential"
                    .into()
            )
        );
    }

    #[test]
    fn an_unknown_system_is_told_what_is_missing_even_as_root() {
        let Plan::Tell(text) = plan(&["make"], Packages::Unknown, true, true) else { panic!("nothing to install with") };
        assert!(text.starts_with("missing make: "));
    }
}
