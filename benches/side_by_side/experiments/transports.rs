//! What it costs to talk to the service in another way than HTTP/1.1 without TLS: acquires on connections that are kept,
//! 64 at once, by the client in `client`. What a handshake costs is in `handshakes`.

use std::path::Path;

use super::added_cost::{self, Case, Cost};
use super::{Plan, redis_url};
use crate::client::Client;
use crate::encryption::Encryption;
use crate::machine::Served;
use crate::redis_server::{RedisOptions, RedisServer};
use crate::report::Finding;

const NAME: &str = "transports";
const AT_ONCE: usize = 64;

struct Transport {
    name: &'static str,
    is_http2: bool,
    connections: usize,
    encryption: Option<fn(&Path) -> Encryption>,
    /// The number of the transport that it is compared with.
    over: usize,
}

const PLAIN: Transport = Transport {
    name: "HTTP/1.1",
    is_http2: false,
    connections: AT_ONCE,
    encryption: None,
    over: 0,
};

const ALL: [Transport; 5] = [
    PLAIN,
    Transport {
        name: "HTTP/2 on as many connections",
        is_http2: true,
        ..PLAIN
    },
    Transport {
        name: "HTTP/2 on 4 connections",
        is_http2: true,
        connections: 4,
        ..PLAIN
    },
    Transport {
        name: "TLS",
        encryption: Some(Encryption::with_ecdsa),
        ..PLAIN
    },
    // With a keys file that says who has the certificate, and its rules.
    Transport {
        name: "a client certificate",
        encryption: Some(|directory| Encryption::with_ecdsa(directory).and_of_clients()),
        over: 3,
        ..PLAIN
    },
];

pub(super) async fn run(plan: Plan) -> Vec<Finding> {
    let cases = ALL.map(|Transport { name, over, .. }| Case {
        name,
        over,
        least: None,
    });
    added_cost::of(NAME, plan, &cases, async |index| {
        measure(&ALL[index], plan.seconds).await
    })
    .await
}

async fn measure(transport: &Transport, seconds: f64) -> Cost {
    let redis = RedisServer::start(RedisOptions::forgetful()).await;
    let directory = tempfile::tempdir().unwrap();
    let encryption = transport.encryption.map(|new| new(directory.path()));
    let flags = encryption.as_ref().map(Encryption::flags);
    let flags = flags.unwrap_or_default();
    let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
    let served = Served::leasehold(&redis_url(&redis), &flags);
    let client = Client {
        address: served.address,
        is_http2: transport.is_http2,
        tls: encryption.as_ref().map(Encryption::client_config),
    };
    let (connections, at_once) = (transport.connections, AT_ONCE / transport.connections);
    Cost::by_client(&served, seconds, async |seconds| {
        client
            .on_kept_connections(connections, at_once, seconds)
            .await
    })
    .await
}
