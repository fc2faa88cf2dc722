package leasehold

import (
	"crypto/rand"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"time"
)

const (
	answerTimeout  = 10 * time.Second
	releaseTimeout = 2 * time.Second
	// leaseMax is longer than any lease.
	leaseMax = 115 * 24 * time.Hour
)

// claim is one attempt to hold a lock or several. Its token never changes, so each of its requests may be repeated.
type claim struct {
	names     []string
	token     string
	holdCount int
	wait      time.Duration
	// fields are those of the acquire, without wait.
	fields map[string]any
}

// call is a request to the service.
type call struct {
	method, path, token string
	fields              map[string]any
	timeout             time.Duration
}

// answer is what came back. A status of 0 means that nothing did.
type answer struct {
	status     int
	retryAfter time.Duration
	body       []byte
	err        error
}

// grant is what an answer says about a lease. Of several locks, the one that ends first counts.
type grant struct {
	fencingTokens map[string]int64
	ttl           time.Duration
	// validFor is how long the lease lasts, counted from before the request was sent.
	validFor time.Duration
}

// Option says how to acquire.
type Option func(*claim)

// WithTTL sets how long the lease lasts without renewal, 30 s by default. It is renewed at a third of this.
func WithTTL(ttl time.Duration) Option { return field("ttl", inMillis(ttl)) }

// WithWait sets how long to wait for the lock: zero does not wait. By default, the context is the only bound.
func WithWait(wait time.Duration) Option { return func(c *claim) { c.wait = wait } }

// Shared holds the lock together with other shared claims: a read lock.
func Shared() Option { return field("mode", "shared") }

// Semaphore takes some permits of a semaphore that has limit of them.
func Semaphore(limit, permits int) Option {
	return func(c *claim) { c.fields["mode"], c.fields["limit"], c.fields["permits"] = "shared", limit, permits }
}

// WithOwner says who holds, for others to read.
func WithOwner(owner string) Option { return field("owner", owner) }

// WithMetadata is for others to read.
func WithMetadata(metadata map[string]any) Option { return field("metadata", metadata) }

// WithMinHold keeps the lock taken at least this long, even if it is released earlier.
func WithMinHold(minHold time.Duration) Option { return field("min_hold", inMillis(minHold)) }

// WithMaxHold ends the lease after this at the latest, whatever the renewals.
func WithMaxHold(maxHold time.Duration) Option { return field("max_hold", inMillis(maxHold)) }

// WithLockDelay keeps the lock closed for this long after the lease expired or was evicted.
func WithLockDelay(delay time.Duration) Option { return field("lock_delay", inMillis(delay)) }

// Unfair takes a free lock ahead of the queue.
func Unfair() Option { return field("fair", false) }

// WithToken sets the token of the claim, a new random UUID by default.
func WithToken(token string) Option { return func(c *claim) { c.token = token } }

// WithHoldCount sets the depth of re-entry, 1 by default. With the token of a held lease and a larger depth the lock is
// re-entered; releasing such a lease steps back.
func WithHoldCount(count int) Option {
	return func(c *claim) { c.holdCount, c.fields["hold_count"] = count, count }
}

func field(name string, value any) Option { return func(c *claim) { c.fields[name] = value } }

func newClaim(names []string, options []Option) (*claim, error) {
	c := &claim{names: names, holdCount: 1, wait: forEver, fields: map[string]any{}}
	for _, option := range options {
		option(c)
	}
	// Metadata may have values that JSON has not.
	if _, err := json.Marshal(c.fields); err != nil {
		return nil, err
	}
	if c.token == "" {
		var bytes [16]byte
		if _, err := rand.Read(bytes[:]); err != nil {
			return nil, err
		}
		bytes[6], bytes[8] = bytes[6]&0x0f|0x40, bytes[8]&0x3f|0x80
		c.token = fmt.Sprintf("%x-%x-%x-%x-%x", bytes[:4], bytes[4:6], bytes[6:8], bytes[8:10], bytes[10:])
	}
	return c, nil
}

func (c *claim) acquire(wait time.Duration) call {
	fields := map[string]any{}
	for name, value := range c.fields {
		fields[name] = value
	}
	if wait > 0 {
		fields["wait"] = inMillis(wait)
	}
	return c.call(http.MethodPost, fields, wait+answerTimeout)
}

func (c *claim) renew(timeout time.Duration) call {
	return c.call(http.MethodPut, map[string]any{}, timeout)
}

// release releases the lock or leaves the queue; a re-entered lock is stepped back.
func (c *claim) release() call {
	fields := map[string]any{}
	if c.holdCount > 1 {
		fields["hold_count"] = c.holdCount - 1
	}
	return c.call(http.MethodDelete, fields, releaseTimeout)
}

func (c *claim) call(method string, fields map[string]any, timeout time.Duration) call {
	if len(c.names) == 1 && isValid(c.names[0]) {
		return call{method, "/locks/" + c.names[0], c.token, fields, timeout}
	}
	fields["names"] = c.names
	return call{method, "/locks", c.token, fields, timeout}
}

// isValid says whether a name can stand in a path. There, "a/../b" would become another name; the service refuses it, if
// it gets to see it.
func isValid(name string) bool {
	for _, segment := range strings.Split(name, "/") {
		if segment == "" || segment == "." || segment == ".." {
			return false
		}
	}
	return strings.IndexFunc(name, func(letter rune) bool {
		isAlphanumeric := 'a' <= letter && letter <= 'z' || 'A' <= letter && letter <= 'Z' || '0' <= letter && letter <= '9'
		return !isAlphanumeric && !strings.ContainsRune("._~:@+,=/-", letter)
	}) < 0
}

// isTemporary says whether the same request may succeed later although nothing is wrong with it.
func (a answer) isTemporary() bool {
	return a.status == 0 || a.status == 408 || a.status == 429 || a.status >= 500
}

// isRefusal says whether the request is wrong or not allowed.
func (a answer) isRefusal() bool { return a.status/100 == 4 && !a.isTemporary() }

func (a answer) error(kind error) *Error {
	e := &Error{Kind: kind, Status: a.status, Detail: fmt.Sprintf("the service answered %d", a.status)}
	if a.err != nil {
		e.Detail = a.err.Error()
	}
	// What is not a JSON object comes from a proxy.
	_ = json.Unmarshal(a.body, &e.Problem)
	if code, ok := e.Problem["code"].(string); ok {
		e.Code = code
	}
	if detail, ok := e.Problem["detail"].(string); ok {
		e.Detail = detail
	}
	return e
}

// grant is nil if the body is not a grant of these locks.
func (a answer) grant(names []string) *grant {
	type lease struct {
		Name         string `json:"name"`
		FencingToken int64  `json:"fencing_token"`
		TTL          int64  `json:"ttl_ms"`
		Waited       int64  `json:"waited_ms"`
		ExpiresIn    *int64 `json:"expires_in_ms"`
	}
	var body struct {
		lease
		Locks []lease `json:"locks"`
	}
	if json.Unmarshal(a.body, &body) != nil {
		return nil
	}
	leases := body.Locks
	if len(leases) == 0 {
		leases = []lease{body.lease}
	}
	g := &grant{fencingTokens: map[string]int64{}, validFor: forEver}
	for _, lease := range leases {
		if lease.ExpiresIn == nil || lease.FencingToken == 0 || lease.TTL <= 0 {
			return nil
		}
		for _, millis := range []int64{lease.TTL, lease.Waited, *lease.ExpiresIn} {
			if millis < 0 || millis > leaseMax.Milliseconds() {
				return nil
			}
		}
		g.fencingTokens[lease.Name] = lease.FencingToken
		// The lease lasts for expires_in_ms from the answer, which came no sooner than after the wait.
		validFor := time.Duration(lease.Waited+*lease.ExpiresIn) * time.Millisecond
		if validFor < g.validFor {
			g.validFor, g.ttl = validFor, time.Duration(lease.TTL)*time.Millisecond
		}
	}
	for _, name := range names {
		if _, isGranted := g.fencingTokens[name]; !isGranted {
			return nil
		}
	}
	return g
}
