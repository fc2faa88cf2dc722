//! Who may call, and the rule that an address which others can reach needs a key. Comparing keys is the business of
//! `http`.

use std::net::SocketAddr;

use super::error::ConfigError;
use super::secret::Secret;
use super::settings::Settings;

const API_KEY_CHARS_MIN: usize = 16;

/// Who may call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Auth {
    /// Everybody who reaches the address.
    Open,
    /// Callers that present this key.
    Key(Secret),
}

impl Auth {
    pub(super) fn parse(settings: &Settings, listen: SocketAddr) -> Result<Self, ConfigError> {
        let wants_key = settings.choice("auth", &[("key", true), ("none", false)])?;
        match (wants_key, settings.secret("api_key")) {
            (true, Some(key)) => checked_api_key(settings, key).map(Auth::Key),
            (true, None) if listen.ip().is_loopback() => Ok(Auth::Open),
            (true, None) => {
                let problem = format!(
                    "{listen} is reachable from other machines and there is no key; give api_key_file \
                 (LEASEHOLD_API_KEY_FILE) or api_key (LEASEHOLD_API_KEY), or write auth = \"none\" (LEASEHOLD_AUTH=none)"
                );
                Err(settings.invalid("listen", problem))
            }
            (false, None) => Ok(Auth::Open),
            (false, Some(_)) => {
                let problem = format!(
                    "none contradicts the api_key ({}); drop one of the two",
                    settings.origin("api_key")
                );
                Err(settings.invalid("auth", problem))
            }
        }
    }
}

/// The key travels in a header, so it must survive one.
fn checked_api_key(settings: &Settings, key: Secret) -> Result<Secret, ConfigError> {
    if key.expose().len() < API_KEY_CHARS_MIN {
        let problem = format!(
            "is shorter than {API_KEY_CHARS_MIN} characters; `openssl rand -hex 32` makes a good one"
        );
        return Err(settings.invalid("api_key", problem));
    }
    if !key.expose().bytes().all(|byte| byte.is_ascii_graphic()) {
        let problem =
            "has a character that a header cannot carry; write visible ASCII without spaces";
        return Err(settings.invalid("api_key", problem));
    }
    Ok(key)
}
