//! What a TLS handshake costs the service: acquires with a new connection for each, beside the same without TLS in the same
//! round. The difference is the handshake, and a little encryption of one request and its answer.
//!
//! Nothing resumes a session where clients show certificates: the service does not offer it.

use std::path::Path;

use rustls::HandshakeKind;

use super::Plan;
use super::added_cost::{self, Case, Cost};
use crate::client::Client;
use crate::encryption::Encryption;
use crate::machine::Served;
use crate::report::Finding;

const NAME: &str = "handshakes";
/// Fewer than the limit on the handshakes of one peer.
const AT_ONCE: usize = 16;
/// More locks than a run acquires.
const AMPLE: [&str; 2] = ["--memory-locks-max", "20000000"];

type Handshake = (fn(&Path) -> Encryption, HandshakeKind);

/// Each with its name. The key is that of the service.
const ALL: [(&str, Option<Handshake>); 5] = [
    ("a new connection", None),
    (
        "a full handshake, ECDSA P-256",
        Some((Encryption::with_ecdsa, HandshakeKind::Full)),
    ),
    (
        "a full handshake, RSA 2048",
        Some((Encryption::with_rsa, HandshakeKind::Full)),
    ),
    (
        "a resumed session",
        Some((Encryption::with_ecdsa, HandshakeKind::Resumed)),
    ),
    (
        "a full handshake, ECDSA P-256 on both sides",
        Some((
            |directory| Encryption::with_ecdsa(directory).and_of_clients(),
            HandshakeKind::Full,
        )),
    ),
];

pub(super) async fn run(plan: Plan) -> Vec<Finding> {
    let cases = ALL.map(|(name, _)| Case {
        name,
        over: 0,
        least: None,
    });
    added_cost::of(NAME, plan, &cases, async |index| {
        measure(ALL[index].1, plan.seconds).await
    })
    .await
}

async fn measure(handshake: Option<Handshake>, seconds: f64) -> Cost {
    let directory = tempfile::tempdir().unwrap();
    let encryption = handshake.map(|(new, _)| new(directory.path()));
    let flags = encryption.as_ref().map(Encryption::flags);
    let flags = flags.unwrap_or_default();
    let flags = flags.iter().map(String::as_str).chain(AMPLE);
    let served = Served::leasehold("memory:", &flags.collect::<Vec<_>>());
    let client = Client {
        address: served.address,
        is_http2: false,
        tls: encryption.as_ref().map(Encryption::client_config),
    };
    let kind = handshake.map_or(HandshakeKind::Full, |(_, kind)| kind);
    Cost::by_client(&served, seconds, async |seconds| {
        client.on_new_connections(AT_ONCE, seconds, kind).await
    })
    .await
}
