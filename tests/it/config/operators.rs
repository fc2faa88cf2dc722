//! Where the second address serves operators: never those who could not do the same at the first one.

use leasehold::config::OperatorTransport::{self, Any, Encrypted, None as Nothing};

use super::{KEY, from_environment};
use crate::support::certificates::Authority;

fn transport(listen: &str, admin: &str, further: &[(&str, &str)]) -> OperatorTransport {
    let addresses = [
        ("LEASEHOLD_LISTEN", listen),
        ("LEASEHOLD_SERVER_ADMIN_LISTEN", admin),
    ];
    let (config, _) = from_environment(&[&addresses, further].concat()).unwrap();
    config.operator_transport()
}

const NO_KEY: &[(&str, &str)] = &[("LEASEHOLD_AUTH", "none")];
const ONE_KEY: &[(&str, &str)] = &[("LEASEHOLD_API_KEY", KEY)];
const OWN: &str = "127.0.0.1:1";
const ALL: &str = "0.0.0.0:1";
const SOCKET: &str = "unix:/run/a.sock";

#[test]
fn operators_are_served_to_no_more_than_can_reach_the_first_address() {
    for (listen, admin, without_key, with_key) in [
        (OWN, "127.0.0.1:2", Any, Any),
        (OWN, "[::ffff:127.0.0.1]:2", Any, Any),
        (OWN, "unix:/run/b.sock", Any, Any),
        (OWN, "0.0.0.0:2", Nothing, Nothing),
        (OWN, "192.0.2.1:2", Nothing, Nothing),
        (ALL, "127.0.0.1:2", Any, Any),
        (ALL, "unix:/run/b.sock", Any, Any),
        // Many have opened it to everybody, for their probes.
        (ALL, "0.0.0.0:2", Nothing, Any),
        (SOCKET, "unix:/run/b.sock", Any, Any),
        (ALL, "192.0.2.1:2", Nothing, Any),
        // An address of a private network, and all addresses.
        ("192.0.2.1:1", "192.0.2.1:2", Nothing, Any),
        ("192.0.2.1:1", "0.0.0.0:2", Nothing, Nothing),
        (ALL, "[::]:2", Nothing, Nothing),
        ("[::]:1", "0.0.0.0:2", Nothing, Any),
        // The directory of the first one may let fewer users in.
        (SOCKET, "unix:/run/open/b.sock", Nothing, Nothing),
        (SOCKET, "127.0.0.1:2", Nothing, Nothing),
        (SOCKET, "0.0.0.0:2", Nothing, Nothing),
        (ALL, "", Nothing, Nothing),
    ] {
        let found = (
            transport(listen, admin, NO_KEY),
            transport(listen, admin, ONE_KEY),
        );
        assert_eq!(found, (without_key, with_key), "{listen} {admin}");
    }
}

#[test]
fn operators_are_served_over_tls_where_clients_need_it() {
    let authority = Authority::new();
    let (ca, own) = (authority.file(), authority.files_for("leasehold"));
    let tls = [
        ("LEASEHOLD_SERVER_TLS_CERT_FILE", &*own.certificate),
        ("LEASEHOLD_SERVER_TLS_KEY_FILE", &*own.key),
    ];
    let clients = [("LEASEHOLD_SERVER_TLS_CLIENT_CA_FILE", &*ca)];
    let required = [("LEASEHOLD_SERVER_TLS_CLIENT_CERTIFICATE", "required")];
    let optional = [ONE_KEY, &tls, &clients].concat();
    let required = [&optional[..], &required].concat();
    for (admin, with_optional, with_required) in [
        ("0.0.0.0:2", Encrypted, Encrypted),
        ("127.0.0.1:2", Encrypted, Encrypted),
        ("unix:/run/b.sock", Any, Nothing),
    ] {
        assert_eq!(
            transport(ALL, admin, &[ONE_KEY, &tls].concat()),
            with_optional
        );
        assert_eq!(transport(ALL, admin, &optional), with_optional, "{admin}");
        assert_eq!(transport(ALL, admin, &required), with_required, "{admin}");
        let encrypted_without_key = transport(OWN, admin, &[NO_KEY, &tls].concat());
        let is_wider = admin == "0.0.0.0:2";
        assert_eq!(
            encrypted_without_key,
            if is_wider { Nothing } else { with_optional }
        );
    }
}
