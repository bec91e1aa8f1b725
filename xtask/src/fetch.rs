//! What comes as a wheel of the Python package index: fetched with pip, pinned by its hash, unpacked into a folder of its own.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use crate::{
    Stop,
    steps::{Failed, Step},
};

/// A file of the index, one for each machine that it is made for.
pub(crate) struct Wheel {
    /// Its name there.
    pub(crate) name: &'static str,
    pub(crate) version: &'static str,
    /// The sha256 of each file that may be taken; pip picks the one for this machine.
    pub(crate) hashes: &'static [&'static str],
    /// Its size over the network.
    pub(crate) megabytes: u32,
    /// What pip is told so that it takes a file for another Python than its own.
    pub(crate) python: &'static [&'static str],
    /// What must be in the folder.
    pub(crate) files: &'static [&'static str],
}

impl Wheel {
    /// Whether `folder` holds this very version, in full.
    pub(crate) fn is_in(&self, folder: &Path) -> bool {
        fs::read_to_string(list(folder)).is_ok_and(|list| list == self.pin())
            && self.files.iter().all(|file| folder.join(file).is_file())
    }

    /// Unpacks it into `folder`, in place of whatever is there. A run that breaks off leaves `folder` as it was.
    pub(crate) fn fetch(&self, folder: &Path) -> Result<(), Stop> {
        let part = folder.with_extension("part");
        let failed = |what: &str, error: io::Error| Stop::Tell(format!("{}: {what}: {error}", folder.display()));
        self.start(&part).map_err(|error| failed("cannot be made", error))?;
        let step = Step::new(&format!("fetching {self}"), "python3", ["-m", "pip", "install", "--quiet"]);
        let step = step.args(["--disable-pip-version-check", "--no-deps", "--only-binary", ":all:"]).args(self.python);
        let step = step.args(["--require-hashes", "--requirement"]).args([list(&part)]).args(["--target"]).args([&part]);
        // A user's settings for installing packages have no say in what lies in a folder of ours.
        let step = step.with("PIP_USER", "0").with("PIP_REQUIRE_VIRTUALENV", "0");
        step.with("PIP_ROOT_USER_ACTION", "ignore").run()?;
        if !self.is_in(&part) {
            return Err(Failed(format!("{self} was fetched, but it does not hold {}", self.files.join(" and "))).into());
        }
        removed(folder).and_then(|()| fs::rename(&part, folder)).map_err(|error| failed("cannot be replaced", error))
    }

    /// An empty folder, but for the list that pip reads.
    fn start(&self, part: &Path) -> io::Result<()> {
        removed(part)?;
        fs::create_dir_all(part)?;
        fs::write(list(part), self.pin())
    }

    fn pin(&self) -> String {
        let hashes: String = self.hashes.iter().map(|hash| format!(" --hash=sha256:{hash}")).collect();
        format!("{}=={}{hashes}\n", self.name, self.version)
    }
}

impl std::fmt::Display for Wheel {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} {} ({} MB)", self.name, self.version, self.megabytes)
    }
}

fn list(folder: &Path) -> PathBuf {
    folder.join("requirements.txt")
}

fn removed(folder: &Path) -> io::Result<()> {
    match fs::remove_dir_all(folder) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WHEEL: Wheel =
        Wheel { name: "some", version: "1.2", hashes: &["aa", "bb"], megabytes: 3, python: &[], files: &["a/b", "c"] };

    #[test]
    fn pip_is_given_every_hash_and_the_user_the_size() {
        assert_eq!(WHEEL.pin(), "some==1.2 --hash=sha256:aa --hash=sha256:bb\n");
        assert_eq!(WHEEL.to_string(), "some 1.2 (3 MB)");
    }

    #[test]
    fn only_a_whole_folder_of_this_version_counts() {
        let folder = tempfile::tempdir().unwrap();
        let folder = folder.path().join("some");
        assert!(!WHEEL.is_in(&folder));
        WHEEL.start(&folder).unwrap();
        fs::create_dir(folder.join("a")).unwrap();
        fs::write(folder.join("a/b"), "").unwrap();
        assert!(!WHEEL.is_in(&folder), "half of it");
        fs::write(folder.join("c"), "").unwrap();
        assert!(WHEEL.is_in(&folder));
        assert!(!Wheel { version: "1.3", ..WHEEL }.is_in(&folder), "another version");
        WHEEL.start(&folder).unwrap();
        assert!(!WHEEL.is_in(&folder), "started anew");
    }
}
