//! Where operators are served besides `listen`: what they do with locks must need no less at `server.admin_listen`.

use super::{Auth, Config, ListenAddress};

/// The connections over which `server.admin_listen` serves locks to operators.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OperatorTransport {
    /// None: it serves probes and metrics only.
    None,
    /// All, as `listen` needs no TLS, or as the address is a Unix socket.
    Any,
    /// Those with the TLS of `listen`.
    Encrypted,
}

impl Config {
    /// Over which connections `server.admin_listen` serves locks. Whoever can reach it must be able to reach `listen` too, and
    /// pass what `listen` requires of a connection. Many have opened it to all for their probes, so without keys it has
    /// to be an address of this machine.
    #[must_use]
    pub fn operator_transport(&self) -> OperatorTransport {
        let Some(address) = &self.server.admin_listen else {
            return OperatorTransport::None;
        };
        let is_open = self.auth == Auth::Open && !address.is_local();
        if is_open || !is_within(address, &self.listen) {
            return OperatorTransport::None;
        }
        match (&self.certificate, address) {
            (None, _) => OperatorTransport::Any,
            (Some(_), ListenAddress::Tcp(_)) => OperatorTransport::Encrypted,
            // There is no TLS over a Unix socket, and so no certificate of the client.
            (Some(certificate), ListenAddress::Unix(_)) => {
                let clients = certificate.clients.as_ref();
                match clients.is_some_and(|clients| clients.are_required) {
                    true => OperatorTransport::None,
                    false => OperatorTransport::Any,
                }
            }
        }
    }
}

/// Whether everybody who can reach `address` can reach `listen`. Of two network addresses that is known only if they are the
/// same or `listen` is on all of them, and of two Unix sockets only if they are in one directory.
fn is_within(address: &ListenAddress, listen: &ListenAddress) -> bool {
    match (listen, address) {
        (ListenAddress::Tcp(all), ListenAddress::Tcp(one)) if !address.is_local() => {
            let (all, one) = (all.ip(), one.ip());
            all == one || all.is_unspecified() && (all.is_ipv6() || one.is_ipv4())
        }
        (ListenAddress::Unix(listen), ListenAddress::Unix(address)) => {
            listen.parent() == address.parent()
        }
        _ => address.reach() <= listen.reach(),
    }
}
