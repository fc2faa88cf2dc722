//! A Unix socket: who may connect, whose file it is, and that commands and clients speak over it.

use std::fs::Permissions;
use std::io::ErrorKind;
use std::os::unix::fs::{FileTypeExt as _, PermissionsExt as _, chown, symlink};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};

use axum::Router;
use leasehold::config::{AddressBlock, ListenAddress, ServerConfig};
use leasehold::server::{Peer, Server, Workers};
use nix::sys::signal::Signal;
use nix::sys::stat::Mode;
use nix::unistd::mkfifo;
use tempfile::TempDir;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::UnixStream;

use super::config;
use crate::process::{Serving, leasehold, output};
use crate::support::{EFFECT_TIMEOUT, eventually};

/// A directory, and the path of a socket in it.
fn place() -> (TempDir, PathBuf) {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("leasehold.sock");
    (directory, path)
}

fn bind(path: &Path) -> std::io::Result<Server> {
    let config = ServerConfig {
        socket_mode: 0o600,
        ..config()
    };
    Server::bind(&config, ListenAddress::Unix(path.to_owned()))
}

fn is_socket(path: &Path) -> bool {
    std::fs::symlink_metadata(path).is_ok_and(|file| file.file_type().is_socket())
}

async fn ask(path: &Path) -> String {
    let mut stream = UnixStream::connect(path).await.unwrap();
    let request = b"GET / HTTP/1.1\r\nHost: localhost\r\nX-Forwarded-For: 192.0.2.7\r\nConnection: close\r\n\r\n";
    stream.write_all(request).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    answer
}

#[tokio::test]
async fn a_request_over_a_unix_socket_is_that_of_a_user() {
    let (_directory, path) = place();
    let server = bind(&path).unwrap();
    let mode = std::fs::metadata(&path).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    let app = Router::new().fallback(async |request: axum::extract::Request| {
        let peer: &Peer = request.extensions().get().expect("the peer is there");
        peer.address().to_string()
    });
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let served = tokio::spawn(server.run(app, Workers::here(), async {
        let _ = stopped.await;
    }));
    let user = nix::unistd::getuid();
    let answer = ask(&path).await;
    assert!(answer.starts_with("HTTP/1.1 200 OK"), "{answer}");
    assert!(answer.ends_with(&format!("unix:uid={user}")), "{answer}");
    stop.send(()).unwrap();
    served.await.unwrap();
    assert!(!path.exists(), "the file is removed");
}

/// Its user is counted under an address that no network of proxies should have, but may.
#[tokio::test]
async fn a_program_on_this_machine_is_never_a_trusted_proxy() {
    let (_directory, path) = place();
    let config = ServerConfig {
        trusted_proxies: vec![AddressBlock::parse("::/0").unwrap()],
        forwarded_for: true,
        ..config()
    };
    let server = Server::bind(&config, ListenAddress::Unix(path.clone())).unwrap();
    let app = Router::new().fallback(async |request: axum::extract::Request| {
        let peer: &Peer = request.extensions().get().expect("the peer is there");
        format!("{} {}", peer.address(), peer.is_trusted_proxy())
    });
    tokio::spawn(server.run(app, Workers::here(), std::future::pending()));
    let user = nix::unistd::getuid();
    let answer = ask(&path).await;
    assert!(
        answer.ends_with(&format!("unix:uid={user} false")),
        "{answer}"
    );
}

/// Over TCP the first bytes are peeked at, which a Unix socket cannot do.
#[tokio::test]
async fn a_unix_socket_speaks_http2_without_tls_too() {
    let (_directory, path) = place();
    let server = bind(&path).unwrap();
    tokio::spawn(server.run(Router::new(), Workers::here(), std::future::pending()));
    let mut stream = UnixStream::connect(&path).await.unwrap();
    // In two pieces, of which the first could be the beginning of a method.
    stream.write_all(b"PRI * HTTP/2.0").await.unwrap();
    stream.flush().await.unwrap();
    let settings = b"\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";
    stream.write_all(settings).await.unwrap();
    let mut head = [0; 9];
    stream.read_exact(&mut head).await.unwrap();
    assert_eq!(head[3], 4, "a frame of settings");
}

#[tokio::test]
async fn the_socket_of_a_dead_process_is_replaced_and_that_of_another_one_is_not() {
    let (_directory, path) = place();
    drop(UnixListener::bind(&path).unwrap());
    assert!(is_socket(&path), "it outlives its process");
    let server = bind(&path).unwrap();
    let error = bind(&path).err().expect("a process listens there");
    assert_eq!(error.kind(), ErrorKind::AddrInUse);
    drop(server);
    assert!(!path.exists());
    // A process that another test is starting at this moment may still have the lock file open.
    eventually("it is free again", async || bind(&path).ok()).await;
}

/// A program that knows nothing of our lock file.
#[tokio::test]
async fn the_socket_of_another_program_is_not_replaced() {
    let (_directory, path) = place();
    let other = UnixListener::bind(&path).unwrap();
    let error = bind(&path).err().expect("a program listens there");
    assert_eq!(error.kind(), ErrorKind::AddrInUse);
    drop(other);
    bind(&path).expect("it does not listen any more");
}

#[tokio::test]
async fn a_file_that_is_no_socket_stays_as_it_is() {
    let (_directory, path) = place();
    std::fs::write(&path, "important").unwrap();
    let error = bind(&path).err().expect("there is a file");
    assert_eq!(error.kind(), ErrorKind::AlreadyExists);
    assert_eq!(std::fs::read_to_string(&path).unwrap(), "important");
    let others = std::fs::read_dir(path.parent().unwrap()).unwrap().count();
    assert_eq!(others, 1, "nothing else is left there");
}

/// In a directory that others may write to, they can put anything there.
#[test]
fn what_is_no_lock_file_of_the_user_is_refused_by_its_name() {
    type Put = fn(&Path);
    let put: [(&str, Put); 4] = [
        ("a FIFO", |lock| {
            mkfifo(lock, Mode::from_bits_truncate(0o666)).unwrap();
        }),
        ("a symbolic link", |lock| {
            symlink(lock.with_extension("elsewhere"), lock).unwrap();
        }),
        ("a directory", |lock| std::fs::create_dir(lock).unwrap()),
        ("a file of another user", |lock| {
            std::fs::write(lock, "").unwrap();
            // Only root can give a file away; as another user, this is one that cannot be opened.
            if nix::unistd::geteuid().is_root() {
                chown(lock, Some(65_534), None).unwrap();
            } else {
                std::fs::set_permissions(lock, Permissions::from_mode(0o000)).unwrap();
            }
        }),
    ];
    for (what, put) in put {
        let (directory, path) = place();
        let lock = PathBuf::from(format!("{}.lock", path.display()));
        put(&lock);
        let (tell, told) = std::sync::mpsc::channel();
        // On a thread of its own, so that a start that hangs fails the test.
        std::thread::spawn(move || tell.send(bind(&path).err()));
        let error = told.recv_timeout(EFFECT_TIMEOUT);
        let error = error.unwrap_or_else(|_| panic!("{what}: it has to be refused"));
        let error = error.expect(what);
        let expected = format!("{} cannot be locked: ", lock.display());
        assert!(error.to_string().starts_with(&expected), "{what}: {error}");
        if what != "a file of another user" || nix::unistd::geteuid().is_root() {
            let said = error.to_string();
            assert!(
                said.contains(what) && said.ends_with("; move it away"),
                "{said}"
            );
        }
        assert_ne!(error.kind(), ErrorKind::AddrInUse, "{what}");
        let others = std::fs::read_dir(directory.path()).unwrap().count();
        assert_eq!(others, 1, "{what}: nothing else is left there");
    }
}

/// Nobody can connect any more, and the service would never know.
#[test]
fn a_socket_that_something_else_removes_is_reported() {
    let (_directory, path) = place();
    let address = format!("unix:{}", path.display());
    let mut serving = Serving::start_on(&address, leasehold(&[]), &[]);
    std::fs::remove_file(&path).unwrap();
    let line = serving.wait_for_line(
        "the file of the Unix socket was removed or replaced, so nobody can connect; restart the service",
    );
    assert_eq!(line["level"], "ERROR", "{line}");
    assert_eq!(line["path"], path.to_str().unwrap(), "{line}");
}

#[tokio::test]
async fn of_processes_that_start_together_one_gets_the_socket() {
    let (_directory, path) = place();
    drop(UnixListener::bind(&path).unwrap());
    let attempts: Vec<_> = (0..8)
        .map(|_| {
            let path = path.clone();
            tokio::task::spawn_blocking(move || bind(&path))
        })
        .collect();
    let mut servers = Vec::new();
    for attempt in attempts {
        match attempt.await.unwrap() {
            Ok(server) => servers.push(server),
            Err(error) => assert_eq!(error.kind(), ErrorKind::AddrInUse),
        }
    }
    assert_eq!(servers.len(), 1);
    let files = std::fs::read_dir(path.parent().unwrap()).unwrap().count();
    assert_eq!(files, 2, "the socket and its lock file");
}

#[tokio::test]
async fn commands_and_probes_reach_a_service_over_its_socket() {
    let (_directory, path) = place();
    let address = format!("unix:{}", path.display());
    let mut serving = Serving::start_on(&address, leasehold(&[]), &["--server-drain-delay", "0s"]);
    assert_eq!(serving.url, address);
    let healthy = output(&["healthcheck", "--listen", &address]);
    assert!(healthy.status.success(), "{healthy:?}");
    let healthy = output(&["healthcheck", "--url", &address]);
    assert!(healthy.status.success(), "{healthy:?}");
    let held = output(&["acquire", "--url", &address, "backup", "--ttl", "1m"]);
    assert!(held.status.success(), "{held:?}");
    let listed = output(&["ls", "--url", &address]);
    let listed = String::from_utf8(listed.stdout).unwrap();
    assert!(listed.contains("backup"), "{listed}");
    serving.signal(Signal::SIGTERM);
    assert!(serving.wait().success());
    eventually("the file is removed", async || {
        (!path.exists()).then_some(())
    })
    .await;
    let refused = output(&["healthcheck", "--url", &address]);
    assert_eq!(refused.status.code(), Some(1));
    let error = String::from_utf8(refused.stderr).unwrap();
    assert!(
        error.contains(&format!("{address} cannot be reached")),
        "{error}"
    );
}
