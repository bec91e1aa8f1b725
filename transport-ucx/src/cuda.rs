//! What memory of CUDA devices needs of UCX.

use std::fmt;

use crate::{sys::Context, transport::available};

/// UCX's name of such memory.
pub(crate) const CUDA: &str = "cuda";
/// The transport that it opens where it knows such memory at all.
const COPY: &str = "cuda_copy";

/// Why UCX takes memory for another kind than it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Mistaken {
    /// This UCX finds no CUDA here.
    NotThere,
    /// It would, and the transports that it may use leave CUDA's out: it opens nothing else, not even to look at memory.
    LeftOut,
    /// It knows memory of CUDA devices.
    Otherwise,
}

impl Mistaken {
    /// Asks UCX once more, by another context, where that is needed.
    pub(crate) fn why(context: &Context) -> Self {
        Self::judge(&context.memory_types(), || available(COPY).is_ok())
    }

    fn judge(known: &[&str], would_be: impl FnOnce() -> bool) -> Self {
        match known.contains(&CUDA) {
            true => Self::Otherwise,
            false if would_be() => Self::LeftOut,
            false => Self::NotThere,
        }
    }
}

impl fmt::Display for Mistaken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NotThere => {
                "this ucx finds no cuda here; build with UCX_DIR set to one that has it, such as that of the python wheel \
                 libucx-cu12 or libucx-cu13 (the one that is compiled in has not), and install nvidia's driver"
            }
            Self::LeftOut => "the transports that it may use leave cuda out; add `cuda` to `tls`, or to UCX_TLS, as in `rc,cuda`",
            Self::Otherwise => {
                "it knows cuda memory, so this is not what it is said to be, or ucx did not see it being allocated; \
                 for that set UCX_MEMTYPE_CACHE=n"
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cause_is_what_was_looked_for_last() {
        assert_eq!(Mistaken::judge(&["host"], || false), Mistaken::NotThere);
        assert_eq!(Mistaken::judge(&["host", "rdma"], || true), Mistaken::LeftOut);
        assert_eq!(Mistaken::judge(&["host", CUDA], || unreachable!()), Mistaken::Otherwise);
    }

    #[test]
    fn each_cause_says_what_to_do() {
        for (why, what) in [
            (Mistaken::NotThere, "UCX_DIR"),
            (Mistaken::LeftOut, "`cuda` to `tls`"),
            (Mistaken::Otherwise, "UCX_MEMTYPE_CACHE=n"),
        ] {
            assert!(why.to_string().contains(what), "{why}");
        }
    }
}
