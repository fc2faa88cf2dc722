package leasehold

import (
	"errors"
	"net/url"
	"strings"
	"testing"
	"time"
)

const hostileGrant = `{"name":"a","fencing_token":7,"ttl_ms":60000,"waited_ms":0,"expires_in_ms":60000}`

var garbage = map[string]url.Values{
	"broken compression": {"status": {"200"}, "header": {"Content-Encoding:gzip"}, "body": {"x"}},
	"an hour":            {"status": {"429"}, "header": {"Retry-After:3600"}},
	"a century":          {"status": {"503"}, "header": {"Retry-After:99999999999999999999"}},
	"no lease":           {"status": {"200"}, "body": {`{"locks":[null]}`}},
	"a huge number":      {"status": {"200"}, "body": {strings.Replace(hostileGrant, "_in_ms\":60000", "_in_ms\":9000000000000000000", 1)}},
	"another lock":       {"status": {"200"}, "body": {strings.Replace(hostileGrant, `"a"`, `"b"`, 1)}},
	"no duration":        {"status": {"200"}, "body": {strings.Replace(hostileGrant, `"ttl_ms":60000`, `"ttl_ms":0`, 1)}},
	"a redirect":         {"status": {"307"}, "header": {"Location:/locks/b"}},
}

func (s *server) answer(method string, times string, answer url.Values) {
	query := url.Values{"kind": {"answer"}, "method": {method}, "times": {times}}
	for name, values := range answer {
		query[name] = values
	}
	s.call("POST", "fault", query, &struct{}{})
}

func TestGarbageDoesNotStopTheRenewals(t *testing.T) {
	for name, answer := range garbage {
		answer := answer
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := startServer(t)
			server.answer("PUT", "1", answer)
			lease, err := server.client().Acquire(background, "a", WithTTL(3*time.Second))
			check(t, err)
			eventually(t, func() bool { return server.count("PUT") >= 2 })
			if !lease.Held() || lease.FencingToken() <= 7 {
				t.Fatal("not held")
			}
			check(t, lease.Release())
		})
	}
}

func TestAGrantThatIsNoneIsRefusedAndWithdrawn(t *testing.T) {
	for _, name := range []string{"another lock", "no duration", "a huge number"} {
		server := startServer(t)
		server.answer("POST", "1", garbage[name])
		if _, err := server.client().Acquire(background, "a"); !errors.Is(err, ErrRefused) || server.count("DELETE") != 1 {
			t.Fatal(name, err)
		}
	}
}

func TestAnswersThatComeAtOnceAreNotAskedForWithoutAPause(t *testing.T) {
	over := strings.Replace(hostileGrant, `_in_ms":60000`, `_in_ms":0`, 1)
	for _, answer := range []url.Values{{"status": {"423"}}, {"status": {"201"}, "body": {over}}} {
		server := startServer(t)
		server.answer("POST", "100000", answer)
		client := server.client()
		client.SetRetryFor(time.Second)
		if _, err := client.Acquire(background, "a", WithWait(time.Second)); err == nil || server.count("POST") > 12 {
			t.Fatal(err, server.count("POST"))
		}
	}
}

func TestAnAnswerThatDripsIsGivenUp(t *testing.T) {
	server := startServer(t)
	server.fault("drip", "PUT", 1)
	server.fault("drip", "DELETE", 1)
	lease, err := server.client().Acquire(background, "a", WithTTL(3*time.Second))
	check(t, err)
	eventually(t, func() bool { return server.count("PUT") >= 2 })
	if !lease.Held() {
		t.Fatal("not held")
	}
	check(t, lease.Release())
}

func TestAReleaseThatWasNotConfirmedStaysSo(t *testing.T) {
	server := startServer(t)
	server.fault("refuse", "DELETE", 3)
	lease, err := server.client().Acquire(background, "a")
	check(t, err)
	for count := 0; count < 2; count++ {
		if err := lease.Release(); !errors.Is(err, ErrUnavailable) {
			t.Fatal(err)
		}
	}
	if server.count("DELETE") != 3 {
		t.Fatal("asked again")
	}
}
