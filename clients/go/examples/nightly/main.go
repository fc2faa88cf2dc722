// A job that all machines start and one of them runs. It takes LEASEHOLD_URL and LEASEHOLD_API_KEY_FILE.
package main

import (
	"context"
	"errors"
	"fmt"
	"log"
	"time"

	"example.com/leasehold"
)

func main() {
	client, err := leasehold.FromEnv()
	if err != nil {
		log.Fatal(err)
	}
	// The last option keeps the lock from machines whose clocks are up to a minute late.
	err = client.WithLock(context.Background(), "nightly-report", write, leasehold.WithWait(0), leasehold.WithMinHold(time.Minute))
	if errors.Is(err, leasehold.ErrHeld) {
		log.Print("another machine runs it: ", err)
		return
	}
	if err != nil {
		log.Fatal(err)
	}
}

func write(ctx context.Context, lease *leasehold.Lease) error {
	for page := 0; page < 3; page++ {
		// Between steps, stop if the lease is lost.
		if err := lease.Err(); err != nil {
			return err
		}
		fmt.Printf("page %d, written with fencing token %d\n", page, lease.FencingToken())
	}
	return ctx.Err()
}
