//! Where the server listens: an address with a port, or a Unix socket of this machine.

use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;

use super::error::ConfigError;
use super::settings::Settings;

/// What an address of a Unix socket begins with; its path follows.
const UNIX: &str = "unix:";
/// The longest path that the system can bind, in bytes, without those that a temporary name needs.
const PATH_BYTES_MAX: usize = 90;
/// All permissions of a file.
const MODE_MAX: u32 = 0o777;

/// Where the server listens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ListenAddress {
    /// An address and a port.
    Tcp(SocketAddr),
    /// The path of a Unix socket, which only programs on this machine can reach.
    Unix(PathBuf),
}

/// Who can reach an address, from the fewest to the most.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Reach {
    /// The users whom the permissions of a Unix socket let in.
    Users,
    /// Every program on this machine.
    Machine,
    /// Other machines.
    Network,
}

impl ListenAddress {
    pub(super) fn parse(settings: &Settings, name: &str) -> Result<Self, ConfigError> {
        let text = settings.text(name);
        let Some(path) = text.trim().strip_prefix(UNIX).map(str::trim) else {
            return settings.address(name).map(Self::Tcp);
        };
        if !path.starts_with('/') || path.ends_with('/') || path.len() > PATH_BYTES_MAX {
            let problem = format!(
                "\"{path}\" is not the path of a Unix socket; write an absolute one of at most {PATH_BYTES_MAX} bytes, like \
                 unix:/run/leasehold/leasehold.sock"
            );
            return Err(settings.invalid(name, problem));
        }
        let address = Self::Unix(path.into());
        if text != address.to_string() {
            let problem =
                format!("{text:?} has a blank before or after its path; write \"{address}\"");
            return Err(settings.invalid(name, problem));
        }
        Ok(address)
    }

    /// Whether no other machine can reach it.
    #[must_use]
    pub fn is_local(&self) -> bool {
        self.reach() < Reach::Network
    }

    /// Who can reach it.
    pub(super) fn reach(&self) -> Reach {
        match self {
            Self::Tcp(address) if address.ip().to_canonical().is_loopback() => Reach::Machine,
            Self::Tcp(_) => Reach::Network,
            Self::Unix(_) => Reach::Users,
        }
    }

    /// Whether both cannot be listened on at once. The system chooses another port for each port 0.
    pub(super) fn excludes(&self, other: &Self) -> bool {
        match self {
            Self::Tcp(address) => address.port() != 0 && self == other,
            Self::Unix(_) => self == other,
        }
    }
}

impl From<SocketAddr> for ListenAddress {
    fn from(address: SocketAddr) -> Self {
        Self::Tcp(address)
    }
}

impl fmt::Display for ListenAddress {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(address) => address.fmt(formatter),
            Self::Unix(path) => write!(formatter, "{UNIX}{}", path.display()),
        }
    }
}

/// The permissions of a Unix socket, as `chmod` has them: "0660".
pub(super) fn socket_mode(settings: &Settings, name: &str) -> Result<u32, ConfigError> {
    let text = settings.text(name);
    let mode = u32::from_str_radix(text, 8);
    mode.ok().filter(|mode| *mode <= MODE_MAX).ok_or_else(|| {
        let problem = format!(
            "\"{text}\" is no mode of a file; write \"0660\" for the user and the group of the server, or \"0600\" for its \
             user alone"
        );
        settings.invalid(name, problem)
    })
}
