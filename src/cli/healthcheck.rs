//! `leasehold healthcheck`: asks a running server whether it is ready, for images that have neither curl nor a shell.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use clap::{Arg, ArgMatches, Command};
use http_body_util::Full;
use hyper::body::Bytes;
use hyper::header::HOST;
use hyper::{Request, StatusCode, Uri};
use serde_json::Value;
use tokio_rustls::TlsConnector;

use super::{CliError, Environment, Exit, flags, output};
use crate::client::{HttpConnection, ServiceUrl};
use crate::config::{Config, Probed};
use crate::domain::duration;
use crate::tls;

/// Why the server is considered unhealthy.
#[derive(Debug, thiserror::Error)]
pub(super) enum Unhealthy {
    #[error("{url} did not answer within {timeout:?}")]
    TimedOut { url: Uri, timeout: Duration },
    #[error("{url} cannot be reached: {error}")]
    Unreachable { url: Uri, error: io::Error },
    /// The text is the status, and the failed checks if the answer has any.
    #[error("{url} answered {text}")]
    Refused { url: Uri, text: String },
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
        .defer(|healthcheck| healthcheck.args(flags_of_its_server()))
}

/// All flags of the server are accepted. The address and the file are used, so only these are in the help.
fn flags_of_its_server() -> impl Iterator<Item = Arg> {
    flags::all().into_iter().map(|flag| {
        let is_used = ["config", "listen"].contains(&flag.get_id().as_str());
        flag.hide(!is_used)
    })
}

pub(super) fn run(matches: &ArgMatches, environment: Environment) -> Result<Exit, CliError> {
    let timeout = *matches
        .get_one::<Duration>("timeout")
        .expect("it has a default");
    let (url, has_tls) = match matches.get_one::<Uri>("url") {
        Some(url) => (url.clone(), false),
        None => {
            let probed = Config::probed(&flags::sources(matches, environment))?;
            (readiness_of(&probed), probed.has_tls)
        }
    };
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    let runtime = runtime.map_err(|error| Unhealthy::Unreachable {
        url: url.clone(),
        error,
    })?;
    let answer =
        runtime.block_on(async { tokio::time::timeout(timeout, answer_of(&url, has_tls)).await });
    match answer {
        Err(_) => Err(Unhealthy::TimedOut { url, timeout }.into()),
        Ok(Err(error)) => Err(Unhealthy::Unreachable { url, error }.into()),
        Ok(Ok((status, _))) if status.is_success() => {
            // The exit code says it.
            let _ = output::write("healthy\n");
            Ok(Exit::Done)
        }
        Ok(Ok((status, body))) => {
            let text = status.to_string() + &failed_checks(&body);
            Err(Unhealthy::Refused { url, text }.into())
        }
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
fn readiness_of(probed: &Probed) -> Uri {
    let listen = probed.address;
    let ip: IpAddr = match listen {
        SocketAddr::V4(v4) if v4.ip().is_unspecified() => Ipv4Addr::LOCALHOST.into(),
        SocketAddr::V6(v6) if v6.ip().is_unspecified() => Ipv6Addr::LOCALHOST.into(),
        SocketAddr::V4(_) | SocketAddr::V6(_) => listen.ip(),
    };
    let address = SocketAddr::new(ip, listen.port());
    let scheme = match probed.has_tls {
        true => "https",
        false => "http",
    };
    format!("{scheme}://{address}/readyz")
        .parse()
        .expect("an address and a path make a URL")
}

/// Sends a GET and returns the status, and the body as far as it arrived.
async fn answer_of(url: &Uri, has_tls: bool) -> io::Result<(StatusCode, Bytes)> {
    let path = match url.path_and_query() {
        // The answer then has the reason.
        Some(path) if path == "/readyz" => "/readyz?verbose",
        Some(path) => path.as_str(),
        None => "/",
    };
    let service = url.authority().map_or("", |authority| authority.as_str());
    let service = ServiceUrl::parse(&format!("http://{service}")).map_err(io::Error::other)?;
    let request = Request::get(path).header(HOST, service.host_header());
    let request = request.body(Full::default()).map_err(io::Error::other)?;
    let tls = has_tls.then(tls::config_for_probe).transpose();
    let tls = tls.map_err(io::Error::other)?;
    let tls = tls.map(|config| TlsConnector::from(Arc::new(config)));
    let mut connection = HttpConnection::open(&service, tls.as_ref()).await?;
    let answer = connection.exchange(request).await;
    let (status, _, body) = answer.map_err(io::Error::other)?;
    Ok((status, body))
}

/// The names and findings of the failed checks in the body of `/readyz?verbose`, after a colon.
fn failed_checks(body: &[u8]) -> String {
    let body: Value = serde_json::from_slice(body).unwrap_or_default();
    let checks = body["checks"].as_array().map_or(&[][..], Vec::as_slice);
    let failed = checks.iter().filter(|check| check["ok"] == false);
    let failed: Vec<String> = failed
        .filter_map(|check| {
            let (name, detail) = (check["name"].as_str()?, check["detail"].as_str()?);
            Some(format!("{name}: {detail}"))
        })
        .collect();
    match failed.is_empty() {
        true => String::new(),
        false => format!(": {}", failed.join("; ")),
    }
}
