//! NIXL backends by name.

use std::{fmt, str::FromStr};

/// A NIXL backend: one of NIXL's plugins, by its name.
///
/// ```
/// use transport_nixl::Backend;
/// assert_eq!("nixl".parse::<Backend>()?.to_string(), "nixl:UCX");
/// assert_eq!("nixl:libfabric".parse::<Backend>()?.name(), "LIBFABRIC");
/// let error = "nixl:POSIX".parse::<Backend>()?.for_heartbeats().unwrap_err();
/// assert!(error.to_string().contains("POSIX"));
/// # Ok::<(), transport_nixl::BackendError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Backend(String);

/// Whether a backend can carry notifications, without which there are no heartbeats.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Notifications {
    /// It can.
    Yes,
    /// It cannot.
    No,
    /// This crate does not know that plugin; NIXL tells once it is loaded.
    Unknown,
}

/// Why a name is no backend, or a backend no use.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum BackendError {
    /// Neither `nixl` nor `nixl:NAME`.
    #[error("\"{}\" is no NIXL transport: write nixl, nixl:UCX, nixl:LIBFABRIC or nixl: and another backend's name", got.escape_debug())]
    NotNixl {
        /// What was given.
        got: String,
    },
    /// Not a name that a plugin can have; it becomes part of a file name.
    #[error("\"{}\" is no backend name: expected 1 to {MAX_NAME} letters, digits, - or _", got.escape_debug())]
    Name {
        /// The name that was given.
        got: String,
    },
    /// The backend cannot notify.
    #[error(
        "backend {name} carries no notifications, so no heartbeats: choose one that does, such as nixl:UCX or nixl:LIBFABRIC"
    )]
    NoNotifications {
        /// The backend.
        name: String,
    },
}

const MAX_NAME: usize = 64;
const DEFAULT: &str = "UCX";

/// NIXL's own plugins. Which of them notify was read from NIXL 1.5.
const KNOWN: [(&str, Notifications); 13] = [
    (DEFAULT, Notifications::Yes),
    ("LIBFABRIC", Notifications::Yes),
    ("UCCL", Notifications::Yes),
    ("Mooncake", Notifications::Yes),
    ("GPUNETIO", Notifications::Yes),
    ("POSIX", Notifications::No),
    ("OBJ", Notifications::No),
    ("GDS", Notifications::No),
    ("GDS_MT", Notifications::No),
    ("HF3FS", Notifications::No),
    ("GUSLI", Notifications::No),
    ("AZURE_BLOB", Notifications::No),
    ("INFINIA", Notifications::No),
];

fn known(name: &str) -> Option<&'static (&'static str, Notifications)> {
    KNOWN.iter().find(|(known, _)| known.eq_ignore_ascii_case(name))
}

impl Default for Backend {
    /// `nixl:UCX`.
    fn default() -> Self {
        Self(DEFAULT.to_owned())
    }
}

impl Backend {
    /// The plugin's name as NIXL spells it.
    pub fn name(&self) -> &str {
        &self.0
    }

    /// Whether it can carry notifications.
    pub fn notifications(&self) -> Notifications {
        known(&self.0).map_or(Notifications::Unknown, |&(_, notifications)| notifications)
    }

    /// This backend, unless it is known to carry no notifications.
    ///
    /// # Errors
    /// `NoNotifications`, with the backend's name.
    pub fn for_heartbeats(self) -> Result<Self, BackendError> {
        match self.notifications() {
            Notifications::No => Err(BackendError::NoNotifications { name: self.0 }),
            Notifications::Yes | Notifications::Unknown => Ok(self),
        }
    }
}

impl FromStr for Backend {
    type Err = BackendError;

    /// Reads `nixl`, which is `nixl:UCX`, or `nixl:NAME`. NIXL's own plugins may be written in any case, others exactly.
    fn from_str(text: &str) -> Result<Self, BackendError> {
        let name = match text.strip_prefix("nixl") {
            Some("") => DEFAULT,
            Some(rest) => rest.strip_prefix(':').ok_or(BackendError::NotNixl { got: text.to_owned() })?,
            None => return Err(BackendError::NotNixl { got: text.to_owned() }),
        };
        let fits = (1..=MAX_NAME).contains(&name.len());
        if !fits || !name.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_')) {
            return Err(BackendError::Name { got: name.to_owned() });
        }
        Ok(Self(known(name).map_or(name, |&(spelled, _)| spelled).to_owned()))
    }
}

impl fmt::Display for Backend {
    /// As it is written on a command line, `nixl:NAME`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "nixl:{}", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<Backend, BackendError> {
        text.parse()
    }

    #[test]
    fn names_are_read_and_known_ones_spelled_as_nixl_does() {
        for (text, name) in [
            ("nixl", "UCX"),
            ("nixl:UCX", "UCX"),
            ("nixl:LIBFABRIC", "LIBFABRIC"),
            ("nixl:mooncake", "Mooncake"),
            ("nixl:my-Plugin_2", "my-Plugin_2"),
        ] {
            assert_eq!(parse(text).unwrap().name(), name);
            assert_eq!(parse(&format!("nixl:{name}")), parse(text));
        }
    }

    #[test]
    fn what_is_no_name_is_refused_with_what_was_given() {
        for got in ["", "ucx", "NIXL", "nixlUCX", "nixl UCX", ":UCX"] {
            assert_eq!(parse(got), Err(BackendError::NotNixl { got: got.into() }));
        }
        for got in ["", "../x", "a b", "UCX:2", "ü", "a\0", &"x".repeat(65)] {
            assert_eq!(parse(&format!("nixl:{got}")), Err(BackendError::Name { got: got.into() }));
        }
    }

    #[test]
    fn every_backend_without_notifications_is_refused_for_heartbeats_by_name() {
        for (name, notifications) in KNOWN {
            let result = parse(&format!("nixl:{name}")).unwrap().for_heartbeats();
            match notifications {
                Notifications::No => assert_eq!(result, Err(BackendError::NoNotifications { name: name.into() })),
                _ => assert_eq!(result.unwrap().name(), name),
            }
        }
        // A plugin of somebody else's may notify; NIXL will say.
        assert_eq!(parse("nixl:OTHER").unwrap().for_heartbeats().unwrap().notifications(), Notifications::Unknown);
    }
}
