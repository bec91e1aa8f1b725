//! Where processes run: ours and UCX's alike, either of a pair on a core of its own.
//!
//! Left to the scheduler, a pair that sleeps now shares a core and now does not, which moves every figure by half.

use std::{env, fs, path::Path, process::Command};

use super::{child::bound, node::Side};

/// The program that puts another on a core.
const TASKSET: &str = "taskset";

/// Two cores, if there are two and a way to choose them.
#[derive(Clone, Copy, Debug)]
pub struct Cores(Option<[usize; 2]>);

impl Cores {
    /// The first two that this process may use.
    pub fn of_this_machine() -> Self {
        let path = env::var_os("PATH").unwrap_or_default();
        let can_choose = env::split_paths(&path).any(|folder| folder.join(TASKSET).is_file());
        let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
        let list = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"));
        Self(list.filter(|_| can_choose).and_then(first_two))
    }

    /// Starts `program` where that side of a pair runs, and no longer than this process does.
    pub(super) fn command(self, program: &Path, side: Side) -> Command {
        let Some([lead, follow]) = self.0 else { return bound(program) };
        let core = if side == Side::Lead { lead } else { follow };
        let mut command = bound(TASKSET);
        command.args(["-c", &core.to_string()]).arg(program);
        command
    }

    /// Where that is, for the reader of a report.
    pub fn describe(self) -> String {
        match self.0 {
            Some([lead, follow]) => format!("either process of a pair on a core of its own, {lead} and {follow}"),
            None => format!("wherever the scheduler likes, so ratios lie far apart: two cores and {TASKSET} would help"),
        }
    }
}

/// Of a list such as `0-3,8`.
fn first_two(list: &str) -> Option<[usize; 2]> {
    let ranges = list.trim().split(',').filter_map(|range| {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        Some(first.parse().ok()?..=last.parse().ok()?)
    });
    let mut cores = ranges.flatten();
    Some([cores.next()?, cores.next()?])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_two_of_a_list() {
        assert_eq!(["\t0-3,8", "5,7-9", "2-2,4"].map(first_two), [Some([0, 1]), Some([5, 7]), Some([2, 4])]);
        assert_eq!(["", "0", "x-y", "3-3"].map(first_two), [None; 4]);
    }
}
