package leasehold

import (
	"context"
	"fmt"
	"log"
	"strings"
	"sync"
	"time"
)

const (
	renewalTimeoutMax = 10 * time.Second
	releaseAttempts   = 3
	releasePause      = 400 * time.Millisecond
)

// Lease is a held lock, or several. A goroutine renews it until it is released or lost. It may be used by several
// goroutines.
type Lease struct {
	client        *Client
	claim         *claim
	fencingTokens map[string]int64
	lost          chan struct{}
	stop          context.CancelFunc

	mutex       sync.Mutex
	grant       *grant
	confirmedAt time.Time
	// refusal is what the service last refused a renewal with.
	refusal    *Error
	loss       *Error
	isReleased bool
	// released is closed when the release has ended, with this result.
	released   chan struct{}
	releaseErr error
}

func newLease(client *Client, claim *claim, grant *grant, sentAt time.Time) *Lease {
	ctx, stop := context.WithCancel(context.Background())
	lease := &Lease{
		client:        client,
		claim:         claim,
		fencingTokens: grant.fencingTokens,
		lost:          make(chan struct{}),
		released:      make(chan struct{}),
		stop:          stop,
		grant:         grant,
		confirmedAt:   sentAt,
	}
	go lease.keep(ctx)
	return lease
}

// Names are the names of the locks.
func (l *Lease) Names() []string { return l.claim.names }

// Token proves the claim. It is secret.
func (l *Lease) Token() string { return l.claim.token }

// FencingToken is larger than that of every earlier grant of this lock. Send it with every write. Of several locks it is
// that of the first.
func (l *Lease) FencingToken() int64 { return l.fencingTokens[l.claim.names[0]] }

// FencingTokens are the fencing tokens of each lock, by name. They must not be changed.
func (l *Lease) FencingTokens() map[string]int64 { return l.fencingTokens }

// Held says whether the lease is certainly ours at this moment. It reads the clock, and so is right before any goroutine
// ran.
func (l *Lease) Held() bool { return l.Remaining() > 0 }

// Remaining is how long the lease certainly lasts without another renewal.
func (l *Lease) Remaining() time.Duration {
	l.mutex.Lock()
	defer l.mutex.Unlock()
	if l.loss != nil || l.isReleased {
		return 0
	}
	left := l.grant.validFor - elapsed(l.confirmedAt)
	if left <= 0 {
		// It stays over, also if an answer to a renewal comes late: the lease was reported as lost.
		detail := "it was not renewed in time"
		if l.refusal != nil {
			detail += fmt.Sprintf(", because the service answered %d: %s", l.refusal.Status, l.refusal.Detail)
		}
		l.lose(&Error{Kind: ErrLost, Code: "lease_expired", Detail: detail})
		return 0
	}
	return left
}

// Lost is closed when the lease is lost, and never if it is released before that.
func (l *Lease) Lost() <-chan struct{} { return l.lost }

// Err is ErrLost, with the reason, if the lease is lost: for use between steps of the work.
func (l *Lease) Err() error {
	l.Remaining()
	l.mutex.Lock()
	defer l.mutex.Unlock()
	if l.loss != nil {
		return l.loss
	}
	return nil
}

// Release releases the lock, within 7 s. The error is ErrLost if the lease was lost, and ErrUnavailable if the service
// did not confirm the release; then the lease ends with its TTL. A second release waits for the first, and returns the
// same.
func (l *Lease) Release() error {
	// Before the request, which makes it too late to notice a loss.
	l.Remaining()
	l.mutex.Lock()
	isFirst := !l.isReleased
	l.isReleased = true
	loss := l.loss
	l.mutex.Unlock()
	l.stop()
	if !isFirst {
		<-l.released
		if err := l.Err(); err != nil {
			return err
		}
		return l.releaseErr
	}
	// Also if the transport of the caller panics.
	defer close(l.released)
	if loss == nil || loss.Status == 0 {
		// A lease whose time is over here may still keep others waiting, but it is not worth more than one attempt.
		attempts := releaseAttempts
		if loss != nil {
			attempts = 1
		}
		if err := l.release(attempts); err != nil && loss == nil {
			l.releaseErr = err
			return err
		}
	}
	return l.Err()
}

func (l *Lease) release(attempts int) error {
	var failure *Error
	for attempt := 0; attempt < attempts; attempt++ {
		if attempt > 0 {
			time.Sleep(jittered(releasePause))
		}
		answer := l.client.send(context.Background(), l.claim.release())
		switch {
		case answer.status == 200 || answer.status == 204:
			return nil
		case answer.status == 412:
			l.mutex.Lock()
			defer l.mutex.Unlock()
			l.lose(answer.error(ErrLost))
			return nil
		case !answer.isTemporary():
			return answer.error(ErrRefused)
		}
		failure = answer.error(ErrUnavailable)
	}
	return failure
}

// lose needs the mutex. The first reason stays.
func (l *Lease) lose(loss *Error) {
	if l.loss == nil {
		l.loss = loss
		close(l.lost)
		l.stop()
	}
}

func (l *Lease) keep(ctx context.Context) {
	pause := l.grant.ttl/3 - elapsed(l.confirmedAt)
	for sleep(ctx, shorter(pause, l.Remaining())) == nil {
		left := l.Remaining()
		if left == 0 {
			return
		}
		ttl := l.ttl()
		sentAt := time.Now()
		timeout := shorter(shorter(ttl/4, renewalTimeoutMax), left)
		answer := l.client.send(ctx, l.claim.renew(timeout))
		if l.Remaining() == 0 {
			return
		}
		renewed := answer.grant(l.claim.names)
		switch {
		case answer.status == 200 && renewed != nil:
			l.mutex.Lock()
			l.grant, l.confirmedAt, l.refusal = renewed, sentAt, nil
			l.mutex.Unlock()
			pause = renewed.ttl/3 - elapsed(sentAt)
		case answer.status == 409 || answer.status == 412:
			l.mutex.Lock()
			l.lose(answer.error(ErrLost))
			l.mutex.Unlock()
			return
		default:
			if answer.isRefusal() {
				l.noteRefusal(answer.error(ErrRefused))
			}
			pause = longer(shorter(later(answer.retryAfter), ttl/6), jittered(ttl/10))
		}
	}
}

// noteRefusal keeps why a renewal was refused, for example because the key is wrong now, and logs the first. Somebody may
// correct that in time.
func (l *Lease) noteRefusal(refusal *Error) {
	l.mutex.Lock()
	isFirst := l.refusal == nil
	l.refusal = refusal
	l.mutex.Unlock()
	if isFirst {
		names := strings.Join(l.claim.names, " ")
		log.Printf("leasehold: %s is not renewed, because the service answered %d: %s", names, refusal.Status, refusal.Detail)
	}
}

func (l *Lease) ttl() time.Duration {
	l.mutex.Lock()
	defer l.mutex.Unlock()
	return l.grant.ttl
}
