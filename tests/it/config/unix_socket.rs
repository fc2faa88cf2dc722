//! A Unix socket as the address to listen on: what may be written, and messages about what may not.

use leasehold::config::{Auth, ListenAddress};

use super::{complaint, from_environment};

const LISTEN: &str = "LEASEHOLD_LISTEN";
const MODE: &str = "LEASEHOLD_SERVER_SOCKET_MODE";

#[test]
fn a_service_on_a_unix_socket_needs_no_key() {
    let variables = [(LISTEN, "unix:/run/a.sock"), (MODE, "0600")];
    let (config, _) = from_environment(&variables).unwrap();
    assert_eq!(config.listen, ListenAddress::Unix("/run/a.sock".into()));
    assert_eq!(config.listen.to_string(), "unix:/run/a.sock");
    assert_eq!(config.auth, Auth::Open);
    assert_eq!(config.server.socket_mode, 0o600);
    let (config, _) = from_environment(&[]).unwrap();
    assert_eq!(config.server.socket_mode, 0o660);
}

#[test]
fn what_is_no_path_or_no_mode_of_a_socket_is_refused() {
    let long = format!("unix:/{}", "x".repeat(90));
    let relative = "is not the path of a Unix socket; write an absolute one of at most 90 bytes";
    let blank = "has a blank before or after its path; write \"unix:/run/a.sock\"";
    for (name, value, expected) in [
        (LISTEN, "unix:leasehold.sock", relative),
        (LISTEN, "unix:/run/", relative),
        (LISTEN, "unix:", relative),
        (LISTEN, "unix: ", relative),
        (LISTEN, &long, relative),
        (LISTEN, "unix:/run/a.sock ", blank),
        (LISTEN, "unix:/run/a.sock\n", blank),
        (LISTEN, "unix: /run/a.sock", blank),
        (LISTEN, " unix:/run/a.sock", blank),
        ("LEASEHOLD_SERVER_ADMIN_LISTEN", "unix:/run/a.sock\t", blank),
        (MODE, "rw", "\"rw\" is no mode of a file; write \"0660\""),
        (MODE, "1777", "\"1777\" is no mode of a file"),
    ] {
        let complaint = complaint(from_environment(&[(name, value)]));
        assert!(complaint.contains(expected), "{value}: {complaint}");
    }
}

#[test]
fn one_socket_cannot_be_listened_on_twice() {
    let twice = [
        (LISTEN, "unix:/run/a.sock"),
        ("LEASEHOLD_SERVER_ADMIN_LISTEN", "unix:/run/a.sock"),
    ];
    let complaint = complaint(from_environment(&twice));
    assert!(
        complaint.contains("unix:/run/a.sock is taken by listen"),
        "{complaint}"
    );
}
