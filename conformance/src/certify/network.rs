//! Two network namespaces with one cable between them, for nodes that are to be cut off from each other.
//!
//! Needs root and `ip`. Who made them holds a lock for as long as they are of use, whatever else can see of that process: what no
//! lock stands for any more was left by one that had no time to clear up, and is removed by the next run.

use std::{
    collections::BTreeSet,
    fs::{self, DirBuilder, File, OpenOptions},
    hash::{BuildHasher as _, RandomState},
    io,
    os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _},
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use super::lab::{Side, Trouble};

/// What all names of namespaces begin with.
const PREFIX: &str = "kvlease-";
/// Where their locks lie: beside the namespaces, for whoever sees these.
const LOCKS: &str = "/run/kvlease";
/// The end of the cable in either namespace, which nothing outside of it sees, nor the addresses: they are for documentation.
const DEVICE: &str = "kvlease0";
/// How often it is looked whether the cable is plugged in; each look starts a process.
const LOOKS: usize = 1000;
const NEAR_ADDRESS: &str = "192.0.2.1/24";
const FAR_ADDRESS: &str = "192.0.2.2/24";

/// The two namespaces. Dropping it removes them; a node still in one keeps it alive, and nothing else.
pub(super) struct Network {
    name: String,
    near: String,
    far: String,
    /// Held for its life.
    _lock: File,
}

impl Network {
    /// Makes them.
    ///
    /// # Errors
    /// `Skip` with the reason where this machine does not let it.
    pub(super) fn new() -> Result<Self, Trouble> {
        let skip = |why: String| Trouble::Skip(format!("no network to cut, which takes root and ip: {why}"));
        let name = format!("{PREFIX}{:016x}", RandomState::new().hash_one(PREFIX)); // another one each time
        let lock = lock(&name).map_err(|error| skip(format!("{LOCKS}: {error}")))?;
        let (near, far) = (side(&name, NEAR), side(&name, FAR));
        let network = Self { name, near, far, _lock: lock }; // from here on, whatever there is of it is removed
        network.make().map_err(skip)?;
        Ok(network)
    }

    fn make(&self) -> Result<(), String> {
        let Self { near, far, .. } = self;
        ip(&["netns", "add", near])?;
        ip(&["netns", "add", far])?;
        ip(&["link", "add", DEVICE, "netns", near, "type", "veth", "peer", "name", DEVICE, "netns", far])?;
        for (side, address) in [(near, NEAR_ADDRESS), (far, FAR_ADDRESS)] {
            ip(&["-n", side, "address", "add", address, "dev", DEVICE])?;
            ip(&["-n", side, "link", "set", DEVICE, "up"])?;
            // NIXL connects each agent to itself, and waits for ever where its own address does not answer.
            ip(&["-n", side, "link", "set", "lo", "up"])?;
        }
        // Some containers may make them and not enter them.
        ip(&["netns", "exec", near, "true"])?;
        // A transport that starts before the kernel has noticed finds no device.
        let is_up = |side| ip(&["-n", side, "link", "show", DEVICE]).map(|shown| shown.contains("state UP"));
        for _ in 0..LOOKS {
            if is_up(near)? && is_up(far)? {
                return Ok(());
            }
        }
        Err("the link does not come up".into())
    }

    /// Cuts the cable, or heals it.
    pub(super) fn cut(&self, cut: bool) -> Result<(), Trouble> {
        let set = ip(&["-n", &self.near, "link", "set", DEVICE, if cut { "down" } else { "up" }]);
        set.map(|_| ()).map_err(|why| Trouble::Harness(format!("cannot cut or heal the link: {why}")))
    }

    /// What starts a program on a side. It becomes that program, so that signals reach it.
    pub(super) fn inside(&self, side: Side) -> Command {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", if side == Side::Near { &self.near } else { &self.far }]);
        command
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        remove(&self.name);
    }
}

const NEAR: &str = "-near";
const FAR: &str = "-far";

fn side(name: &str, side: &str) -> String {
    format!("{name}{side}")
}

/// Removes what there is of a network whose lock one holds; the lock at last.
fn remove(name: &str) {
    for namespace in [side(name, NEAR), side(name, FAR)] {
        let _ = ip(&["netns", "delete", &namespace]); // it may not have been made
    }
    let _ = fs::remove_file(lock_path(name)); // it lies empty until the next sweep
}

fn lock_path(name: &str) -> PathBuf {
    Path::new(LOCKS).join(name)
}

/// Locks a network's name, unless somebody holds it.
fn lock(name: &str) -> io::Result<File> {
    DirBuilder::new().mode(0o700).recursive(true).create(LOCKS)?;
    let file = OpenOptions::new().write(true).create(true).truncate(false).mode(0o600).open(lock_path(name))?;
    file.try_lock()?;
    Ok(file)
}

/// Removes the networks that nobody holds any more.
pub(super) fn sweep() {
    if !rustix::process::geteuid().is_root() {
        return; // who may make none has left none
    }
    for name in left() {
        if let Ok(_lock) = lock(&name) {
            remove(&name);
        }
    }
}

/// The names of all networks, as far as there is anything of them.
fn left() -> BTreeSet<String> {
    let namespaces = ip(&["netns", "list"]).unwrap_or_default();
    let namespaces = namespaces.lines().filter_map(|line| line.split_whitespace().next());
    let locks = fs::read_dir(LOCKS).into_iter().flatten().flatten().map(|entry| entry.file_name().to_string_lossy().into_owned());
    let names = namespaces.filter_map(|name| name.strip_suffix(NEAR).or(name.strip_suffix(FAR)).map(str::to_owned));
    names.chain(locks).filter(|name| name.starts_with(PREFIX)).collect()
}

/// Runs `ip`, and returns what it says, or its complaint.
fn ip(args: &[&str]) -> Result<String, String> {
    let output = Command::new("ip").args(args).stdin(Stdio::null()).output().map_err(|error| format!("ip: {error}"))?;
    let complaint = String::from_utf8_lossy(&output.stderr);
    let complaint = complaint.lines().next().unwrap_or("it said nothing");
    match output.status.success() {
        true => Ok(String::from_utf8_lossy(&output.stdout).into_owned()),
        false => Err(format!("ip {}: {complaint}", args.join(" "))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A network, or `None` where this machine has none to cut.
    fn network() -> Option<Network> {
        Network::new().ok()
    }

    fn is_there(name: &str) -> bool {
        left().contains(name)
    }

    #[test]
    fn a_network_is_swept_once_nobody_uses_it_and_not_before() {
        let Some(network) = network() else { return };
        sweep();
        assert!(network.inside(Side::Near).arg("true").status().unwrap().success());
        network.cut(true).unwrap();
        let name = network.name.clone();
        network._lock.unlock().unwrap(); // as the kernel does for who is killed
        std::mem::forget(network);
        sweep();
        assert!(!is_there(&name) && !lock_path(&name).exists());
    }

    #[test]
    fn nothing_is_left_of_a_network_that_is_done_with() {
        let Some(network) = network() else { return };
        let name = network.name.clone();
        assert!(is_there(&name));
        drop(network);
        assert!(!is_there(&name) && !lock_path(&name).exists());
    }

    #[test]
    fn a_network_is_locked_for_its_user_alone() {
        use std::os::unix::fs::PermissionsExt as _;
        let Some(network) = network() else { return };
        assert!(lock(&network.name).is_err());
        assert_eq!(fs::metadata(lock_path(&network.name)).unwrap().permissions().mode() & 0o777, 0o600);
    }
}
