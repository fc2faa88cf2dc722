//! `leasehold healthcheck`: asks a running server whether it is ready, for images that have neither curl nor a shell.
//! It implements just enough HTTP/1.1 to read a status line.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use clap::{Arg, ArgMatches, Command};
use hyper::Uri;
use tokio::net::TcpStream;

use super::{CliError, Environment, Exit, flags, print};
use crate::config::Config;
use crate::domain::duration;

const STATUS_LINE_BYTES_MAX: usize = 1024;

/// Why the server is considered unhealthy.
#[derive(Debug, thiserror::Error)]
pub(super) enum Unhealthy {
    #[error("{url} did not answer within {timeout:?}")]
    TimedOut { url: Uri, timeout: Duration },
    #[error("{url} cannot be reached: {error}")]
    Unreachable { url: Uri, error: io::Error },
    #[error("{url} answered {status}")]
    Refused { url: Uri, status: String },
}

pub(super) fn command() -> Command {
    let url = Arg::new("url")
        .long("url")
        .value_name("URL")
        .value_parser(parse_url)
        .help("The URL to request, instead of /readyz of the configured address; without a path, /readyz is added");
    let timeout = Arg::new("timeout")
        .long("timeout")
        .value_name("DURATION")
        .default_value("2s")
        .value_parser(|text: &str| duration::parse(text).map_err(|error| error.to_string()))
        .help("How long to wait for the response");
    Command::new("healthcheck")
        .about("Ask a running server whether it is ready: exit 0, or 1 with the reason")
        .args([url, timeout])
        .args(flags::all())
}

pub(super) fn run(matches: &ArgMatches, environment: Environment) -> Result<Exit, CliError> {
    let timeout = *matches
        .get_one::<Duration>("timeout")
        .expect("it has a default");
    let url = match matches.get_one::<Uri>("url") {
        Some(url) => url.clone(),
        None => readiness_of(Config::listen_address(&flags::sources(
            matches,
            environment,
        ))?),
    };
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    let runtime = runtime.map_err(|error| Unhealthy::Unreachable {
        url: url.clone(),
        error,
    })?;
    let status = runtime.block_on(async { tokio::time::timeout(timeout, status_of(&url)).await });
    match status {
        Err(_) => Err(Unhealthy::TimedOut { url, timeout }.into()),
        Ok(Err(error)) => Err(Unhealthy::Unreachable { url, error }.into()),
        Ok(Ok(status)) if status.starts_with('2') => Ok(print("healthy\n")),
        Ok(Ok(status)) => Err(Unhealthy::Refused { url, status }.into()),
    }
}

fn parse_url(text: &str) -> Result<Uri, String> {
    let parse = |text: &str| text.parse::<Uri>().map_err(|error| error.to_string());
    let url = parse(text)?;
    let (Some("http"), Some(authority)) = (url.scheme_str(), url.authority()) else {
        return Err("write one like http://127.0.0.1:7625/readyz".to_owned());
    };
    match (url.path(), url.query()) {
        // The index at `/` responds even when the server is not ready.
        ("" | "/", None) => parse(&format!("http://{authority}/readyz")),
        _ => Ok(url),
    }
}

/// The readiness URL. A server that listens on the unspecified address is asked over loopback, because nothing can
/// connect to the unspecified address itself.
fn readiness_of(listen: SocketAddr) -> Uri {
    let ip: IpAddr = match listen {
        SocketAddr::V4(v4) if v4.ip().is_unspecified() => Ipv4Addr::LOCALHOST.into(),
        SocketAddr::V6(v6) if v6.ip().is_unspecified() => Ipv6Addr::LOCALHOST.into(),
        SocketAddr::V4(_) | SocketAddr::V6(_) => listen.ip(),
    };
    let address = SocketAddr::new(ip, listen.port());
    format!("http://{address}/readyz")
        .parse()
        .expect("an address and a path make a URL")
}

/// Sends a GET and returns its status, such as `200 OK`.
async fn status_of(url: &Uri) -> io::Result<String> {
    let host = url
        .host()
        .expect("the URL was checked to have one")
        .trim_matches(['[', ']']);
    let stream = TcpStream::connect((host, url.port_u16().unwrap_or(80))).await?;
    let path = url.path_and_query().map_or("/", |path| path.as_str());
    let authority = url.authority().map_or(host, |authority| authority.as_str());
    let request = format!("GET {path} HTTP/1.1\r\nHost: {authority}\r\nConnection: close\r\n\r\n");
    send(&stream, request.as_bytes()).await?;
    let line = receive_line(&stream).await?;
    let status = line
        .strip_prefix("HTTP/1.1 ")
        .or_else(|| line.strip_prefix("HTTP/1.0 "));
    status
        .map(str::to_owned)
        .ok_or_else(|| io::Error::other("the answer is not HTTP"))
}

async fn send(stream: &TcpStream, mut bytes: &[u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        stream.writable().await?;
        match stream.try_write(bytes) {
            Ok(written) => bytes = &bytes[written..],
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

async fn receive_line(stream: &TcpStream) -> io::Result<String> {
    let mut line = Vec::new();
    let mut buffer = [0; STATUS_LINE_BYTES_MAX];
    loop {
        stream.readable().await?;
        match stream.try_read(&mut buffer) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(read) => line.extend_from_slice(&buffer[..read]),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => continue,
            Err(error) => return Err(error),
        }
        if let Some(end) = line.iter().position(|byte| *byte == b'\n') {
            return Ok(String::from_utf8_lossy(&line[..end]).trim_end().to_owned());
        }
        if line.len() > STATUS_LINE_BYTES_MAX {
            return Err(io::Error::other("the answer is not HTTP"));
        }
    }
}
