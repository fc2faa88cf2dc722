mod contestants;

fn main() {
    let mut args = std::env::args().skip(1);
    if args.next().as_deref() == Some("serve") {
        let which = args.next().expect("which");
        let redis = args.next().unwrap_or_default();
        tokio::runtime::Builder::new_multi_thread()
            .enable_all()
            .build()
            .expect("a runtime")
            .block_on(contestants::serve(&which, &redis))
            .expect("served");
    }
}
