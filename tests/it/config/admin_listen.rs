//! Where the second address may serve locks: never to clients that the first one would not serve.

use super::{KEY, from_environment};

#[test]
fn without_keys_the_second_address_serves_locks_to_no_more_clients_than_the_first() {
    for (listen, admin, auth, serves_locks) in [
        ("127.0.0.1:1", "127.0.0.1:2", None, true),
        ("127.0.0.1:1", "unix:/run/a.sock", None, true),
        ("unix:/run/a.sock", "unix:/run/b.sock", None, true),
        ("127.0.0.1:1", "0.0.0.0:2", None, false),
        ("127.0.0.1:1", "192.0.2.1:2", None, false),
        ("unix:/run/a.sock", "127.0.0.1:2", None, false),
        ("0.0.0.0:1", "127.0.0.1:2", Some("AUTH"), true),
        ("0.0.0.0:1", "0.0.0.0:2", Some("AUTH"), false),
        ("0.0.0.0:1", "0.0.0.0:2", Some("API_KEY"), true),
        ("unix:/run/a.sock", "127.0.0.1:2", Some("API_KEY"), true),
    ] {
        let mut variables = vec![
            ("LEASEHOLD_LISTEN", listen),
            ("LEASEHOLD_SERVER_ADMIN_LISTEN", admin),
        ];
        variables.extend(auth.map(|name| match name {
            "AUTH" => ("LEASEHOLD_AUTH", "none"),
            _ => ("LEASEHOLD_API_KEY", KEY),
        }));
        let (config, _) = from_environment(&variables).unwrap();
        assert_eq!(config.admin_serves_locks(), serves_locks, "{variables:?}");
    }
}
