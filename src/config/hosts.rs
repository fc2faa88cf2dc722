//! Hosts and ports in the URL of a store.

use std::fmt;

/// Writes hosts and ports as in a URL.
pub(super) fn write(formatter: &mut fmt::Formatter<'_>, hosts: &[(String, u16)]) -> fmt::Result {
    for (number, (host, port)) in hosts.iter().enumerate() {
        let comma = if number == 0 { "" } else { "," };
        match host.contains(':') {
            true => write!(formatter, "{comma}[{host}]:{port}")?,
            false => write!(formatter, "{comma}{host}:{port}")?,
        }
    }
    Ok(())
}

pub(super) fn host_and_port(authority: &str, default: u16) -> Result<(String, u16), String> {
    let (host, port) = match authority.strip_prefix('[') {
        Some(bracketed) => {
            let (host, port) = bracketed
                .split_once(']')
                .ok_or("the bracket of the address is not closed")?;
            (host, port.strip_prefix(':').unwrap_or(port))
        }
        None => authority.split_once(':').unwrap_or((authority, "")),
    };
    if host.is_empty() {
        return Err("the host is missing".to_owned());
    }
    let port = match port {
        "" => default,
        number => number
            .parse()
            .map_err(|_| "the port is not a number up to 65535".to_owned())?,
    };
    Ok((host.to_owned(), port))
}
