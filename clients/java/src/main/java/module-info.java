/** Client of Leasehold, distributed locks over HTTP. Begin with {@link leasehold.client.LeaseholdClient}. */
module leasehold.client {
    requires transitive java.net.http;
    exports leasehold.client;
}
