//! The keys of two principals are changed again and again, in each way in which people and Kubernetes replace a file, while
//! clients send without a pause. A client changes to the next key once the service has it, as the page about it says.

use std::fs;
use std::net::SocketAddr;
use std::os::unix::fs::symlink;

use leasehold::config::KeyHash;
use nix::sys::signal::Signal;
use tokio::net::TcpStream;
use tokio::sync::watch;

use super::{key_of, publish};
use crate::process::Serving;
use crate::support::load::{Kind, Load, LoadClient};
use crate::support::single_connection::SingleConnection;

const RELOADED: &str = "API keys reloaded: they have changed";
const KEPT: &str = "cannot reload the API keys; the previous keys stay valid";

/// A key of the principal whose clients use this protocol.
fn key(is_http2: bool, version: u32) -> String {
    key_of(&format!("{is_http2}-{version}"))
}

/// A keys file in which both principals have the keys of these versions.
fn keys_file(versions: &[u32]) -> String {
    let principal = |is_http2| {
        let keys = versions.iter().map(|version| key(is_http2, *version));
        let hashes = keys.map(|key| format!("\"{}\"", KeyHash::of(key.as_bytes())));
        let hashes = hashes.collect::<Vec<_>>().join(", ");
        format!(
            "[principals.http2-{is_http2}]\nkeys = [{hashes}]\n\
             rules = [{{ prefix = \"{is_http2}\", verbs = [\"acquire\"] }}]\n"
        )
    };
    [false, true].map(principal).concat()
}

/// Clients that use the key of this version.
#[derive(Clone)]
struct Clients {
    address: SocketAddr,
    version: watch::Receiver<u32>,
}

impl LoadClient for Clients {
    async fn open(&self, kind: Kind) -> SingleConnection {
        let stream = TcpStream::connect(self.address).await.unwrap();
        let connection = SingleConnection::over(stream, kind.is_http2).await;
        connection.expect("it is not cut")
    }

    fn key(&self, kind: Kind) -> Option<String> {
        Some(key(kind.is_http2, *self.version.borrow()))
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_request_is_refused_while_keys_are_changed_under_load() {
    let directory = tempfile::tempdir().unwrap();
    publish(directory.path(), "..1", &keys_file(&[1]));
    let path = directory.path().join("keys.toml");
    symlink("..data/keys.toml", &path).unwrap();
    let arguments = ["--auth-keys-file", path.to_str().unwrap()];
    let interval = ["--auth-reread-interval", "20ms"];
    let mut serving = Serving::start(&[&arguments[..], &interval].concat());
    let (use_version, version) = watch::channel(1);
    let load = Load::start(&Clients {
        address: serving.address(),
        version,
    });
    load.goes_on().await;

    // The file is written in place, and is empty for a moment.
    fs::write(&path, keys_file(&[1, 2])).unwrap();
    serving.wait_for_line(RELOADED);
    use_version.send(2).unwrap();
    load.goes_on().await;
    let next = directory.path().join("..data/next");
    fs::write(&next, keys_file(&[2])).unwrap();
    fs::rename(next, directory.path().join("..data/keys.toml")).unwrap();
    serving.wait_for_line(RELOADED);
    load.goes_on().await;
    // What cannot be used changes nothing.
    publish(directory.path(), "..2", &keys_file(&[]));
    serving.wait_for_line(KEPT);
    load.goes_on().await;
    publish(directory.path(), "..3", &keys_file(&[2, 3]));
    serving.wait_for_line(RELOADED);
    use_version.send(3).unwrap();
    load.goes_on().await;
    publish(directory.path(), "..4", &keys_file(&[3]));
    serving.signal(Signal::SIGHUP);
    serving.wait_for_line(RELOADED);
    load.goes_on().await;
    load.end().await;
}
