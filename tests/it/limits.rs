//! The server's limits for one peer and for all: connections, requests, and time to read. The tests use a small
//! application of their own; `abuse` tests the whole binary.

mod expired_holders;
mod foreign_keys;
mod heads;
mod listings;
mod peers;
mod shared_redis;
mod unread;

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use axum::Router;
use leasehold::config::ServerConfig;
use leasehold::server::{OpenConnections, Server, Workers};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpSocket, TcpStream};

use crate::sockets::local;

pub(crate) const REQUEST: &[u8] = b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n";

/// Starts a server that runs until the test ends.
async fn serve(config: &ServerConfig, app: Router) -> (SocketAddr, OpenConnections) {
    let server = Server::bind(config, local()).unwrap();
    let started = (server.local_addr(), server.open_connections());
    tokio::spawn(server.run(app, Workers::here(), std::future::pending()));
    started
}

/// Another peer on the same machine, by its number.
pub(crate) fn peer(number: u8) -> Ipv4Addr {
    Ipv4Addr::new(127, 0, 0, number)
}

/// A connection from that address.
pub(crate) async fn connect_from(address: Ipv4Addr, to: SocketAddr) -> std::io::Result<TcpStream> {
    let socket = TcpSocket::new_v4()?;
    socket.bind((IpAddr::from(address), 0).into())?;
    socket.connect(to).await
}

/// Sends a request, and returns whether the response has this status.
pub(crate) async fn is_answered(stream: &mut TcpStream, status: u16) -> bool {
    if stream.write_all(REQUEST).await.is_err() {
        return false;
    }
    let mut line = [0; 12];
    match stream.read_exact(&mut line).await {
        Ok(_) => line == format!("HTTP/1.1 {status}").as_bytes(),
        Err(_) => false,
    }
}
