//! What the server accepts connections on: a TCP port, or a Unix socket. Who may connect, and how often, is not known here.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io;
use std::net::SocketAddr;
use std::os::unix::fs::{
    FileTypeExt as _, MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _,
};
use std::os::unix::net::UnixStream as StdUnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use nix::unistd::Uid;
use socket2::{Domain, SockAddr, SockRef, Socket, TcpKeepalive, Type};
use tokio::net::{TcpListener, TcpSocket, TcpStream, UnixListener, UnixStream};
use tokio_util::task::AbortOnDropHandle;

use super::peer_address::PeerAddress;
use crate::config::ListenAddress;
use crate::regular_file;

/// About how many bytes of answers the system buffers for one connection whose peer does not read. By default it
/// buffers megabytes, which no limit of this process counts.
const SEND_BUFFER: u32 = 128 * 1024;

/// How often the system asks a silent peer whether its machine is still there, and after how many questions without an
/// answer it gives the connection up. Nothing is sent to a client that waits for a lock, so nothing else would show that it
/// has vanished.
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(5);
const KEEPALIVE_PROBES: u32 = 2;

/// How many connections may wait to be accepted: as many as the system allows (`net.core.somaxconn`), which lowers this.
/// With the usual 128, many of the clients that reconnect at once when a process is replaced would be dropped without
/// notice, and retry a second later.
const BACKLOG: i32 = i32::MAX;

/// How often the file of a Unix socket is looked for. It costs one system call.
const FILE_CHECK_INTERVAL: Duration = Duration::from_secs(5);

/// A bound listener.
pub(super) enum BoundListener {
    Tcp(TcpListener),
    Unix(UnixListener, SocketFile),
}

/// A connection that can be moved to another runtime.
pub(super) enum AcceptedStream {
    Tcp(std::net::TcpStream),
    Unix(StdUnixStream),
}

/// The file of a Unix socket, which is removed with its listener.
pub(super) struct SocketFile {
    path: PathBuf,
    /// So that a socket that something else has put there is not removed.
    inode: u64,
    /// Until the file is removed, no other process binds the path.
    _lock: File,
    check: AbortOnDropHandle<()>,
}

impl BoundListener {
    /// Listens on the address. A Unix socket has the permissions `mode`.
    pub(super) fn bind(address: &ListenAddress, mode: u32) -> io::Result<Self> {
        match address {
            ListenAddress::Tcp(address) => bind_tcp(*address).map(Self::Tcp),
            ListenAddress::Unix(path) => {
                let (listener, file) = bind_unix(path, mode)?;
                Ok(Self::Unix(listener, file))
            }
        }
    }

    /// The address that was bound, with the port that the system chose for port 0.
    pub(super) fn address(&self) -> io::Result<ListenAddress> {
        Ok(match self {
            Self::Tcp(listener) => ListenAddress::Tcp(listener.local_addr()?),
            Self::Unix(_, file) => ListenAddress::Unix(file.path.clone()),
        })
    }

    /// # Cancel safety
    ///
    /// Nothing is lost: a connection not yet accepted stays in the system's queue.
    pub(super) async fn accept(&self) -> io::Result<(Connected, PeerAddress)> {
        match self {
            Self::Tcp(listener) => {
                let (stream, address) = listener.accept().await?;
                Ok((Connected::Tcp(stream), PeerAddress::from(address)))
            }
            Self::Unix(listener, _) => {
                let (stream, _) = listener.accept().await?;
                let user = stream.peer_cred()?.uid();
                Ok((Connected::Unix(stream), PeerAddress::Unix { user }))
            }
        }
    }
}

/// A connection that was accepted, and may be closed at once.
pub(super) enum Connected {
    Tcp(TcpStream),
    Unix(UnixStream),
}

impl Connected {
    /// The connection, to be served.
    pub(super) fn prepared(self) -> io::Result<AcceptedStream> {
        Ok(match self {
            Self::Tcp(stream) => {
                // Answers are small and complete, so waiting to fill a packet would only delay them.
                stream.set_nodelay(true)?;
                AcceptedStream::Tcp(stream.into_std()?)
            }
            Self::Unix(stream) => {
                // Unlike those of TCP, accepted sockets do not inherit it.
                SockRef::from(&stream).set_send_buffer_size(SEND_BUFFER as usize)?;
                AcceptedStream::Unix(stream.into_std()?)
            }
        })
    }
}

/// As [`TcpListener::bind`], with a longer backlog.
fn bind_tcp(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = match address {
        SocketAddr::V4(_) => TcpSocket::new_v4()?,
        SocketAddr::V6(_) => TcpSocket::new_v6()?,
    };
    // A restarted process can bind the port while connections of the former process are still closing.
    socket.set_reuseaddr(true)?;
    // Accepted sockets inherit both.
    socket.set_send_buffer_size(SEND_BUFFER)?;
    let probes = TcpKeepalive::new()
        .with_time(KEEPALIVE_INTERVAL)
        .with_interval(KEEPALIVE_INTERVAL)
        .with_retries(KEEPALIVE_PROBES);
    SockRef::from(&socket).set_tcp_keepalive(&probes)?;
    socket.bind(address)?;
    socket.listen(BACKLOG.unsigned_abs())
}

/// Binds another name and renames it: so the socket has its permissions before anybody can connect, and replaces one that
/// a dead process has left in one step.
fn bind_unix(path: &Path, mode: u32) -> io::Result<(UnixListener, SocketFile)> {
    // Before the lock, so that nothing is left beside a file that is no socket.
    is_socket_there(path)?;
    let lock = lock(path)?;
    refuse_if_used(path)?;
    let temporary = beside(path, &format!(".{:06x}", fastrand::u32(..0x0100_0000)));
    let socket = Socket::new(Domain::UNIX, Type::STREAM, None)?;
    socket.set_nonblocking(true)?;
    socket.bind(&SockAddr::unix(&temporary)?)?;
    let inode = publish(&socket, &temporary, path, mode).inspect_err(|_| {
        // One that stays is in nobody's way.
        let _ = fs::remove_file(&temporary);
    })?;
    let file = SocketFile {
        path: path.to_owned(),
        inode,
        _lock: lock,
        check: AbortOnDropHandle::new(tokio::spawn(report_removal(path.to_owned(), inode))),
    };
    Ok((UnixListener::from_std(socket.into())?, file))
}

/// Returns the inode of the socket.
fn publish(socket: &Socket, temporary: &Path, path: &Path, mode: u32) -> io::Result<u64> {
    fs::set_permissions(temporary, fs::Permissions::from_mode(mode))?;
    socket.listen(BACKLOG)?;
    let inode = fs::symlink_metadata(temporary)?.ino();
    fs::rename(temporary, path)?;
    Ok(inode)
}

/// The path of another file in the same directory.
fn beside(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    name.into()
}

/// Locks the path for one process. The file is not removed: another process may have opened it, and would then lock a
/// file that a third one does not see.
///
/// In a directory that others may write to, one of them may have put something else there, which is not waited for, not
/// followed elsewhere, and not taken for a process that listens.
fn lock(path: &Path) -> io::Result<File> {
    let path = beside(path, ".lock");
    let unusable = |error: io::Error| {
        let problem = format!("{} cannot be locked: {error}", path.display());
        io::Error::new(error.kind(), problem)
    };
    let mut options = OpenOptions::new();
    options.write(true).create(true).truncate(false).mode(0o600);
    let lock = regular_file::open(&mut options, &path).map_err(unusable)?;
    let metadata = lock.metadata().map_err(unusable)?;
    let is_of = |user: Uid| metadata.uid() == user.as_raw();
    if !is_of(Uid::effective()) && !is_of(Uid::from_raw(0)) {
        let problem = "it is a file of another user; move it away";
        return Err(unusable(io::Error::other(problem)));
    }
    match lock.try_lock() {
        Ok(()) => Ok(lock),
        Err(TryLockError::WouldBlock) => Err(io::ErrorKind::AddrInUse.into()),
        Err(TryLockError::Error(error)) => Err(unusable(error)),
    }
}

/// Whether there is a socket. What is no socket stays as it is.
fn is_socket_there(path: &Path) -> io::Result<bool> {
    match fs::symlink_metadata(path) {
        Ok(metadata) if metadata.file_type().is_socket() => Ok(true),
        Ok(_) => Err(io::Error::new(
            io::ErrorKind::AlreadyExists,
            "the file exists and is no socket",
        )),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
    }
}

/// A socket on which a process listens stays its own, also if that process knows no lock.
fn refuse_if_used(path: &Path) -> io::Result<()> {
    if !is_socket_there(path)? {
        return Ok(());
    }
    let socket = Socket::new(Domain::UNIX, Type::STREAM, None)?;
    // A process that accepts nothing would let a connection wait.
    socket.set_nonblocking(true)?;
    let connected = socket.connect(&SockAddr::unix(path)?);
    match connected.as_ref().map_err(io::Error::kind) {
        Err(io::ErrorKind::ConnectionRefused | io::ErrorKind::NotFound) => Ok(()),
        Err(io::ErrorKind::PermissionDenied) => connected,
        // A process listens there, or its queue is full.
        Ok(()) | Err(_) => Err(io::ErrorKind::AddrInUse.into()),
    }
}

/// Logs once that the file is no longer there. The socket stays open then, but no client finds it, and nothing else would
/// say so. It is not bound again: whoever has removed it may have meant that.
async fn report_removal(path: PathBuf, inode: u64) {
    while is_own(&path, inode) {
        tokio::time::sleep(FILE_CHECK_INTERVAL).await;
    }
    tracing::error!(
        path = %path.display(),
        "the file of the Unix socket was removed or replaced, so nobody can connect; restart the service"
    );
}

fn is_own(path: &Path, inode: u64) -> bool {
    fs::symlink_metadata(path).is_ok_and(|it| it.ino() == inode)
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        self.check.abort();
        if is_own(&self.path, self.inode) {
            // One that stays is replaced by the next process.
            let _ = fs::remove_file(&self.path);
        }
    }
}
