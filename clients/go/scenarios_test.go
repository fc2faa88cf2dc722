package leasehold

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"testing"
	"time"
)

type step struct {
	Acquire, Begin, Finish, Release, Held, Evict, Lock string
	UntilLost                                          string `json:"until_lost"`
	UntilRenewed                                       string `json:"until_renewed"`
	UntilQueued                                        string `json:"until_queued"`
	FencingTokenOf                                     string `json:"fencing_token_of"`
	IsLargerThanOf                                     string `json:"is_larger_than_of"`
	Restart, Is                                        bool
	State, Code                                        string
	Length, Times                                      int
	Names                                              []string
	TTL                                                time.Duration `json:"ttl_ms"`
	Wait                                               time.Duration `json:"wait_ms"`
	Mode                                               string
	Limit, Permits                                     int
	TokenOf                                            string `json:"token_of"`
	HoldCount                                          int    `json:"hold_count"`
	Refused                                            *struct {
		Status int
		Code   string
	}
}

// outcome is that of an acquire in the background.
type outcome struct {
	lease *Lease
	err   error
}

// driver carries out the steps of a scenario.
type driver struct {
	*testing.T
	server *server
	client *Client
	leases map[string]*Lease
	tasks  map[string]chan outcome
}

func TestScenarios(t *testing.T) {
	text, err := os.ReadFile("../scenarios.json")
	check(t, err)
	var scenarios []struct {
		Name  string
		Steps []json.RawMessage
	}
	check(t, json.Unmarshal(text, &scenarios))
	for _, scenario := range scenarios {
		scenario := scenario
		t.Run(scenario.Name, func(t *testing.T) {
			server := startServer(t)
			d := &driver{t, server, server.client(), map[string]*Lease{}, map[string]chan outcome{}}
			for _, text := range scenario.Steps {
				var s step
				check(t, json.Unmarshal(text, &s))
				t.Logf("%s", text)
				d.carryOut(s)
			}
		})
	}
}

func (d *driver) acquire(s step) (*Lease, error) {
	options := []Option{WithTTL(s.TTL * time.Millisecond), WithWait(s.Wait * time.Millisecond)}
	switch {
	case s.Limit > 0:
		options = append(options, Semaphore(s.Limit, int(longer(time.Duration(s.Permits), 1))))
	case s.Mode == "shared":
		options = append(options, Shared())
	}
	if s.TokenOf != "" {
		options = append(options, WithToken(d.leases[s.TokenOf].Token()), WithHoldCount(s.HoldCount))
	}
	return d.client.AcquireAll(context.Background(), s.Names, options...)
}

// expect compares an error with that of the step.
func (d *driver) expect(s step, err error) {
	d.Helper()
	if s.Refused == nil {
		check(d.T, err)
		return
	}
	var refusal *Error
	if !errors.As(err, &refusal) || refusal.Status != s.Refused.Status {
		d.Fatalf("the error is %v", err)
	}
	if s.Refused.Code != "" && refusal.Code != s.Refused.Code {
		d.Fatalf("the code is %s", refusal.Code)
	}
}

func (d *driver) carryOut(s step) {
	d.Helper()
	var err error
	switch {
	case s.Acquire != "":
		d.leases[s.Acquire], err = d.acquire(s)
		d.expect(s, err)
	case s.Begin != "":
		task := make(chan outcome, 1)
		d.tasks[s.Begin] = task
		go func() {
			lease, err := d.acquire(s)
			task <- outcome{lease, err}
		}()
	case s.Finish != "":
		result := <-d.tasks[s.Finish]
		check(d.T, result.err)
		d.leases[s.Finish] = result.lease
	case s.Release != "":
		d.expect(s, d.leases[s.Release].Release())
	case s.Held != "":
		d.assert(d.leases[s.Held].Held() == s.Is, "held")
	case s.UntilLost != "":
		lease := d.leases[s.UntilLost]
		<-lease.Lost()
		var loss *Error
		d.assert(errors.As(lease.Err(), &loss) && loss.Kind == ErrLost && loss.Code == s.Code, "lost with the code")
	case s.FencingTokenOf != "":
		d.assert(d.leases[s.FencingTokenOf].FencingToken() > d.leases[s.IsLargerThanOf].FencingToken(), "larger")
	case s.Restart:
		d.server.call("POST", "restart", nil, &struct{}{})
	case s.Evict != "":
		d.server.evict(s.Evict)
	case s.Lock != "":
		d.assert(d.server.lock(s.Lock).State == s.State, "in this state")
	case s.UntilQueued != "":
		eventually(d.T, func() bool { return d.server.lock(s.UntilQueued).QueueLength == s.Length })
	case s.UntilRenewed != "":
		end := func() string { return d.server.lock(d.leases[s.UntilRenewed].Names()[0]).Holders[0].ExpiresAt }
		for ; s.Times > 0; s.Times-- {
			first := end()
			eventually(d.T, func() bool { return end() != first })
		}
	default:
		d.Fatal("unknown step")
	}
}

func (d *driver) assert(isTrue bool, what string) {
	d.Helper()
	if !isTrue {
		d.Fatal("it is not ", what)
	}
}
