//! One line of output: something that happened on a node.

use serde::Serialize;

use super::time::WorldTime;

/// An event, with the keys in the order in which they are printed. Absent ones are left out.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Line<'a> {
    /// When, in the world.
    #[serde(serialize_with = "display")]
    pub at: WorldTime,
    /// On which node.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub node: Option<&'a str>,
    /// What.
    pub event: &'static str,
    /// The law that is broken.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub law: Option<u8>,
    /// Of this request.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub request: Option<&'a str>,
    /// The smallest world time at which the lease's end has come.
    #[serde(skip_serializing_if = "Option::is_none", serialize_with = "display_some")]
    pub expires: Option<WorldTime>,
    /// How a lease ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<&'static str>,
    /// Why something was refused, rejected, lost or declined.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub why: Option<&'static str>,
    /// The node on the other side.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub peer: Option<&'a str>,
    /// How many leases a heartbeat names.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub leases: Option<u16>,
    /// Its length.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bytes: Option<usize>,
    /// Whether the bytes that were read may be used.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub verdict: Option<&'static str>,
    /// What proves it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub proof: Option<&'static str>,
    /// What broke the law.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub detail: Option<&'a str>,
    /// The line of the trace whose expectation failed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub line: Option<usize>,
}

/// What sees the lines, in the order in which they happen.
pub type Sink<'a> = &'a mut dyn FnMut(&Line<'_>);

fn display<S: serde::Serializer>(at: &WorldTime, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(at)
}

fn display_some<S: serde::Serializer>(at: &Option<WorldTime>, serializer: S) -> Result<S::Ok, S::Error> {
    match at {
        Some(at) => serializer.collect_str(at),
        None => serializer.serialize_none(),
    }
}
