package leasehold

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"sync"
	"testing"
	"time"
)

var background = context.Background()

func TestAnAcquireIsRepeatedWithTheSameToken(t *testing.T) {
	for _, kind := range []string{"lose_answer", "refuse"} {
		server := startServer(t)
		server.fault(kind, "POST", 2)
		lease, err := server.client().Acquire(background, "a", WithWait(0))
		check(t, err)
		requests := server.requests()
		if len(requests) != 3 || requests[1].Failed != kind || requests[2].Failed != "" {
			t.Fatal(requests)
		}
		for _, request := range requests {
			if request.Token != lease.Token() {
				t.Fatal("another token")
			}
		}
		if len(server.lock("a").Holders) != 1 {
			t.Fatal("not one holder")
		}
	}
}

func TestRetryAfterIsHonoured(t *testing.T) {
	server := startServer(t)
	server.fault("refuse", "POST", 1)
	_, err := server.client().Acquire(background, "a")
	check(t, err)
	if requests := server.requests(); requests[1].AtMS-requests[0].AtMS < 1000 {
		t.Fatal("repeated too soon")
	}
}

func TestRetriesHaveABoundAndTheClaimIsWithdrawn(t *testing.T) {
	server := startServer(t)
	server.fault("refuse", "POST", 100)
	client := server.client()
	client.SetRetryFor(2 * time.Second)
	_, err := client.Acquire(background, "a")
	if !errors.Is(err, ErrUnavailable) {
		t.Fatal(err)
	}
	if requests := server.requests(); requests[len(requests)-1].Method != "DELETE" {
		t.Fatal("not withdrawn")
	}
}

func TestNobodyListeningIsUnavailable(t *testing.T) {
	client, err := New("http://127.0.0.1:9")
	check(t, err)
	client.SetRetryFor(200 * time.Millisecond)
	if _, err := client.Acquire(background, "a"); !errors.Is(err, ErrUnavailable) {
		t.Fatal(err)
	}
}

func TestALostAnswerToARenewalOrAReleaseDoesNoHarm(t *testing.T) {
	server := startServer(t)
	lease, err := server.client().Acquire(background, "a", WithTTL(2*time.Second))
	check(t, err)
	server.fault("lose_answer", "PUT", 1)
	server.fault("lose_answer", "DELETE", 1)
	eventually(t, func() bool { return server.count("PUT") >= 2 })
	if !lease.Held() {
		t.Fatal("not held")
	}
	check(t, lease.Release())
	if server.lock("a").State != "free" {
		t.Fatal("not free")
	}
}

func TestALeaseWhoseRenewalsHangIsLostInTime(t *testing.T) {
	server := startServer(t)
	server.fault("hang", "PUT", 100)
	lease, err := server.client().Acquire(background, "a", WithTTL(time.Second))
	check(t, err)
	<-lease.Lost()
	var loss *Error
	if !errors.As(lease.Release(), &loss) || loss.Code != "lease_expired" || lease.Held() {
		t.Fatal(loss)
	}
}

func TestALeaseIsNotHeldRightAfterAPauseBeyondItsTTL(t *testing.T) {
	server := startServer(t)
	lease, err := server.client().Acquire(background, "a", WithTTL(time.Second))
	check(t, err)
	control(t, "POST", "/pause", url.Values{"pid": {fmt.Sprint(os.Getpid())}, "seconds": {"2"}}, &struct{}{})
	before := time.Now()
	for now := before; now.Sub(before) < time.Second; now = time.Now() {
		before = now
	}
	// The process was stopped between the last two readings of the clock.
	if lease.Held() || !errors.Is(lease.Err(), ErrLost) || !errors.Is(lease.Release(), ErrLost) {
		t.Fatal("held")
	}
}

func TestACancelledWaitLeavesTheQueue(t *testing.T) {
	server := startServer(t)
	client := server.client()
	_, err := client.Acquire(background, "a")
	check(t, err)
	ctx, cancel := context.WithCancel(background)
	failed := make(chan error)
	go func() {
		_, err := client.Acquire(ctx, "a")
		failed <- err
	}()
	eventually(t, func() bool { return server.lock("a").QueueLength == 1 })
	cancel()
	if err := <-failed; !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
	if server.lock("a").QueueLength != 0 || server.count("DELETE") != 1 {
		t.Fatal("not withdrawn")
	}
}

func TestTheContextOfTheWorkIsCancelledWhenTheLeaseIsLost(t *testing.T) {
	server := startServer(t)
	client := server.client()
	err := client.WithLock(background, "a", func(ctx context.Context, lease *Lease) error {
		server.evict("a")
		<-ctx.Done()
		return nil
	}, WithTTL(time.Second))
	var loss *Error
	if !errors.As(err, &loss) || loss.Code != "lease_evicted" {
		t.Fatal(err)
	}
	mine := errors.New("mine")
	if err := client.WithLock(background, "a", func(context.Context, *Lease) error { return mine }); err != mine {
		t.Fatal(err)
	}
	check(t, client.WithLock(background, "a", func(context.Context, *Lease) error { return nil }, WithWait(0)))
}

func TestManyWaitersDoNotDelayARenewal(t *testing.T) {
	server := startServer(t)
	client := server.client()
	lease, err := client.Acquire(background, "a", WithTTL(6*time.Second))
	check(t, err)
	ctx, cancel := context.WithCancel(background)
	var waiting sync.WaitGroup
	for count := 0; count < 120; count++ {
		waiting.Add(1)
		go func() {
			defer waiting.Done()
			client.Acquire(ctx, "a")
		}()
	}
	eventually(t, func() bool { return server.lock("a").QueueLength == 120 })
	before := server.count("PUT")
	eventually(t, func() bool { return server.count("PUT") > before+1 })
	if !lease.Held() {
		t.Fatal("not held")
	}
	cancel()
	waiting.Wait()
}

func TestAWrongKeyIsRefusedAtOnceAndAHeldLockSaysWhoHoldsIt(t *testing.T) {
	server := startServer(t)
	wrong := server.client()
	wrong.SetAPIKey("wrongwrongwrongwrongwrongwrongwrongwrong")
	var refusal *Error
	if _, err := wrong.Acquire(background, "a"); !errors.As(err, &refusal) || refusal.Code != "unauthorized" {
		t.Fatal(err)
	}
	client := server.client()
	_, err := client.Acquire(background, "a", WithOwner("pod-1"), WithMetadata(map[string]any{"job": 7}))
	check(t, err)
	_, err = client.Acquire(background, "a", WithWait(0))
	if !errors.Is(err, ErrHeld) || !errors.As(err, &refusal) || refusal.Problem["holders"] == nil {
		t.Fatal(err)
	}
	if holder := server.lock("a").Holders[0]; holder.Owner != "pod-1" {
		t.Fatal(holder)
	}
}

func TestWhatJSONHasNotIsAnError(t *testing.T) {
	client, err := New("http://127.0.0.1:9")
	check(t, err)
	if _, err := client.Acquire(background, "a", WithMetadata(map[string]any{"a": func() {}})); err == nil {
		t.Fatal("no error")
	}
}
