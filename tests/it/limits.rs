//! What the server allows one peer and all of them: connections, requests, and time to read. The application is a small
//! one of the test's own; what the whole binary endures is in `abuse`.

mod heads;
mod listings;
mod peers;
mod unread;

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use axum::Router;
use leasehold::config::ServerConfig;
use leasehold::server::{OpenConnections, Server, Workers};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpSocket, TcpStream};

use crate::sockets::local;

pub(crate) const REQUEST: &[u8] = b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n";

/// A server that runs for as long as the test does.
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

/// Asks, and says whether there was an answer of this status.
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
