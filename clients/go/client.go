// Package leasehold is the client of Leasehold, distributed locks over HTTP.
//
//	client, err := leasehold.New("http://127.0.0.1:7625")
//	…
//	err = client.WithLock(ctx, "backup", func(ctx context.Context, lease *leasehold.Lease) error {
//		return backUp(ctx, lease.FencingToken())
//	})
package leasehold

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"strconv"
	"time"
)

const (
	connectTimeout = 5 * time.Second
	// poll is the wait of one request: shorter than what most proxies allow a request to take.
	poll       = 25 * time.Second
	backoffMin = 100 * time.Millisecond
	backoffMax = 2 * time.Second
	// forEver is longer than any program runs.
	forEver = 100 * 365 * 24 * time.Hour
)

// Client is a service and one pool of connections to it. It may be used by several goroutines.
type Client struct {
	http     *http.Client
	url      string
	key      *apiKey
	retryFor time.Duration
}

// New is a client of the service at this URL. The key is that in the file LEASEHOLD_API_KEY_FILE, which is read for each
// request, or else that of LEASEHOLD_API_KEY, if one is set.
func New(address string) (*Client, error) {
	service, err := serviceURL(address)
	if err != nil {
		return nil, err
	}
	dialer := net.Dialer{Timeout: connectTimeout, KeepAlive: 30 * time.Second}
	transport := &http.Transport{
		Proxy:               http.ProxyFromEnvironment,
		DialContext:         dialer.DialContext,
		TLSHandshakeTimeout: connectTimeout,
		// More than the two by default, so that renewals find a connection.
		MaxIdleConnsPerHost: 20,
		IdleConnTimeout:     30 * time.Second,
	}
	return &Client{
		http:     &http.Client{Transport: transport, CheckRedirect: neverRedirect},
		url:      service,
		key:      keyFromEnv(),
		retryFor: 30 * time.Second,
	}, nil
}

// FromEnv is a client of the service at LEASEHOLD_URL, by default http://127.0.0.1:7625.
func FromEnv() (*Client, error) {
	if address := os.Getenv("LEASEHOLD_URL"); address != "" {
		return New(address)
	}
	return New("http://127.0.0.1:7625")
}

// SetAPIKey sets the key of the service. Call it before the first acquire.
func (c *Client) SetAPIKey(key string) { c.key = constantKey(key) }

// SetAPIKeyFunc sets a function that returns the key of the service. It is called for each request, by several goroutines,
// and has to end with its context. Its error is that of an acquire; while a lease is held, the key of before is used. Call
// it before the first acquire.
func (c *Client) SetAPIKeyFunc(source func(context.Context) (string, error)) {
	c.key = &apiKey{source: source}
}

// SetRetryFor sets how long an acquire repeats requests that get no useful answer, 30 s by default. Call it before the
// first acquire.
func (c *Client) SetRetryFor(d time.Duration) { c.retryFor = d }

// SetTransport replaces the pool of connections, for example for other certificates. It should have no bound on
// connections, because each waiting claim keeps one. Call it before the first acquire.
func (c *Client) SetTransport(transport http.RoundTripper) { c.http.Transport = transport }

// Acquire acquires the lock, and waits for it for as long as the context lasts, unless there is WithWait.
//
// The error is ErrHeld when the wait is over, ErrUnavailable without a useful answer, ErrRefused for a wrong request, or
// that of the context. Then the claim is withdrawn. The lease does not depend on the context.
func (c *Client) Acquire(ctx context.Context, name string, options ...Option) (*Lease, error) {
	return c.AcquireAll(ctx, []string{name}, options...)
}

// AcquireAll acquires several locks, all or none under one token.
func (c *Client) AcquireAll(ctx context.Context, names []string, options ...Option) (*Lease, error) {
	claim, err := newClaim(names, options)
	if err != nil {
		return nil, err
	}
	// If there is no key, that is the error, and nothing has to be withdrawn.
	if _, err := c.key.current(ctx); err != nil {
		return nil, err
	}
	a := acquisition{client: c, claim: claim, begunAt: time.Now()}
	lease, err := a.untilGranted(ctx)
	if err != nil && a.needsWithdrawal {
		// Also if the context is done. Without an answer, the place is lost by itself, and a lease ends with its TTL.
		c.send(context.Background(), claim.release())
	}
	return lease, err
}

// WithLock holds the lock while work runs, and cancels the context of work when the lease is lost. It returns the error
// of work; if there is none, ErrLost if the lease was lost. A release that the service did not confirm is no error: the
// lease ends with its TTL.
func (c *Client) WithLock(ctx context.Context, name string, work func(context.Context, *Lease) error, options ...Option) error {
	lease, err := c.Acquire(ctx, name, options...)
	if err != nil {
		return err
	}
	// Also if work panics.
	defer lease.Release()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() {
		select {
		case <-lease.Lost():
			cancel()
		case <-ctx.Done():
		}
	}()
	if err := work(ctx, lease); err != nil {
		return err
	}
	if err := lease.Release(); errors.Is(err, ErrLost) {
		return err
	}
	return nil
}

// send sends a request and reads the answer, both within the time-out of the call.
func (c *Client) send(ctx context.Context, call call) answer {
	ctx, cancel := context.WithTimeout(ctx, call.timeout)
	defer cancel()
	body, err := []byte(nil), error(nil)
	if len(call.fields) > 0 {
		if body, err = json.Marshal(call.fields); err != nil {
			return answer{err: err}
		}
	}
	request, err := http.NewRequestWithContext(ctx, call.method, c.url+call.path, bytes.NewReader(body))
	if err != nil {
		return answer{err: err}
	}
	request.Header.Set("Lock-Token", call.token)
	key, err := c.key.current(ctx)
	if err != nil {
		return answer{err: err}
	}
	if key != "" {
		request.Header.Set("Authorization", "Bearer "+key)
	}
	if body != nil {
		request.Header.Set("Content-Type", "application/json")
	}
	response, err := c.http.Do(request)
	if err != nil {
		return answer{err: err}
	}
	defer response.Body.Close()
	if body, err = io.ReadAll(response.Body); err != nil {
		return answer{err: err}
	}
	seconds, _ := strconv.ParseUint(response.Header.Get("Retry-After"), 10, 31)
	return answer{status: response.StatusCode, retryAfter: time.Duration(seconds) * time.Second, body: body}
}

// acquisition repeats the request of one claim until it is granted, refused, or the wait is over.
type acquisition struct {
	client       *Client
	claim        *claim
	begunAt      time.Time
	failures     int
	failingSince time.Time
	// needsWithdrawal says whether the service may have the claim in a queue, or may have granted it.
	needsWithdrawal bool
}

func (a *acquisition) untilGranted(ctx context.Context) (*Lease, error) {
	for {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		wait := shorter(a.waitLeft(), poll)
		sentAt := time.Now()
		neededWithdrawal := a.needsWithdrawal
		a.needsWithdrawal = true
		answer := a.client.send(ctx, a.claim.acquire(wait))
		var pause time.Duration
		switch {
		case answer.status == http.StatusOK || answer.status == http.StatusCreated:
			grant := answer.grant(a.claim.names)
			if grant == nil {
				return nil, answer.error(ErrRefused)
			}
			if elapsed(sentAt) < grant.validFor {
				return newLease(a.client, a.claim, grant, sentAt), nil
			}
			// The answer was too long under way. The next one says what is left.
			if pause = a.pauseAfter(answer, sentAt); elapsed(a.failingSince)+pause > a.client.retryFor {
				return nil, answer.error(ErrUnavailable)
			}
		case answer.status == http.StatusLocked:
			a.failures = 0
			a.needsWithdrawal = neededWithdrawal || wait > 0
			left := a.waitLeft()
			if left == 0 {
				return nil, answer.error(ErrHeld)
			}
			// After a wait the next request follows at once, so that the claim keeps its turn; otherwise there is a pause.
			pause = shorter(longer(later(answer.retryAfter), backoffMin-elapsed(sentAt)), left)
		case ctx.Err() != nil:
			return nil, ctx.Err()
		case answer.isTemporary():
			if pause = a.pauseAfter(answer, sentAt); elapsed(a.failingSince)+pause > a.client.retryFor {
				return nil, answer.error(ErrUnavailable)
			}
		default:
			a.needsWithdrawal = neededWithdrawal
			err := answer.error(ErrRefused)
			if err.Code == "claim_ended" {
				err.Kind = ErrLost
			}
			return nil, err
		}
		if err := sleep(ctx, pause); err != nil {
			return nil, err
		}
	}
}

func (a *acquisition) waitLeft() time.Duration {
	return longer(a.claim.wait-elapsed(a.begunAt), 0)
}

// pauseAfter says when to ask again when there was no useful answer.
func (a *acquisition) pauseAfter(answer answer, sentAt time.Time) time.Duration {
	if a.failures == 0 {
		a.failingSince = sentAt
	}
	backoff := backoffMax
	if a.failures < 5 {
		backoff = shorter(backoffMin<<a.failures, backoffMax)
	}
	a.failures++
	return longer(jittered(backoff), later(answer.retryAfter))
}

func sleep(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func neverRedirect(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
