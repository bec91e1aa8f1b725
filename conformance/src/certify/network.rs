//! Two network namespaces with one cable between them, for nodes that are to be cut off from each other.
//!
//! Needs root and `ip`. Both namespaces carry the number of this process in their names: those of processes that are gone, which
//! had no time to clear up, are removed by the next one.

use std::{
    hash::{BuildHasher as _, RandomState},
    process::{Command, Stdio},
};

use super::lab::{Side, Trouble};

/// What all names of namespaces begin with.
const PREFIX: &str = "kvlease-";
/// The end of the cable in either namespace, which nothing outside of it sees, nor the addresses: they are for documentation.
const DEVICE: &str = "kvlease0";
/// How often it is looked whether the cable is plugged in; each look starts a process.
const LOOKS: usize = 1000;
const NEAR_ADDRESS: &str = "192.0.2.1/24";
const FAR_ADDRESS: &str = "192.0.2.2/24";

/// The two namespaces. Dropping it removes them; a node still in one keeps it alive, and nothing else.
pub(super) struct Network {
    near: String,
    far: String,
}

impl Network {
    /// Makes them.
    ///
    /// # Errors
    /// `Skip` with the reason where this machine does not let it.
    pub(super) fn new() -> Result<Self, Trouble> {
        let skip = |why: String| Trouble::Skip(format!("no network to cut, which takes root and ip: {why}"));
        sweep();
        let number = RandomState::new().hash_one(PREFIX) as u32; // another one each time
        let name = |side| format!("{PREFIX}{}-{number:08x}-{side}", std::process::id());
        let network = Self { near: name("near"), far: name("far") }; // from here on, whatever there is of it is removed
        network.make().map_err(skip)?;
        Ok(network)
    }

    fn make(&self) -> Result<(), String> {
        let Self { near, far } = self;
        ip(&["netns", "add", near])?;
        ip(&["netns", "add", far])?;
        ip(&["link", "add", DEVICE, "netns", near, "type", "veth", "peer", "name", DEVICE, "netns", far])?;
        for (side, address) in [(near, NEAR_ADDRESS), (far, FAR_ADDRESS)] {
            ip(&["-n", side, "address", "add", address, "dev", DEVICE])?;
            ip(&["-n", side, "link", "set", DEVICE, "up"])?;
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
        for name in [&self.near, &self.far] {
            let _ = ip(&["netns", "delete", name]); // it may not have been made
        }
    }
}

/// Removes the namespaces of processes that are gone.
fn sweep() {
    let list = Command::new("ip").args(["netns", "list"]).output().map(|output| output.stdout).unwrap_or_default();
    for name in String::from_utf8_lossy(&list).lines().filter_map(|line| line.split_whitespace().next()) {
        let owner = name.strip_prefix(PREFIX).and_then(|rest| rest.split('-').next()).and_then(|pid| pid.parse::<u32>().ok());
        if owner.is_some_and(|pid| !std::path::Path::new(&format!("/proc/{pid}")).exists()) {
            let _ = ip(&["netns", "delete", name]); // another process may have been faster
        }
    }
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
