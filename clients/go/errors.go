package leasehold

import "errors"

// What can go wrong, for errors.Is. Errors of the service are *Error, for errors.As.
var (
	// ErrHeld says that somebody else has the lock, and the wait is over.
	ErrHeld = errors.New("leasehold: the lock is held")
	// ErrLost says that the lease is not ours any more: stop working.
	ErrLost = errors.New("leasehold: the lease is lost")
	// ErrUnavailable says that there was no useful answer for as long as the client retries.
	ErrUnavailable = errors.New("leasehold: the service is unavailable")
	// ErrRefused says that the request is wrong or not allowed, so that a retry cannot help.
	ErrRefused = errors.New("leasehold: the request is refused")
)

// Error is what the service said.
type Error struct {
	// Kind is ErrHeld, ErrLost, ErrUnavailable or ErrRefused.
	Kind error
	// Status is that of HTTP, 0 if there was no answer.
	Status int
	// Code is what happened, for programs, such as lock_held; never renamed. It is empty if the service did not say. A
	// lease that could not be renewed in time has lease_expired.
	Code string
	// Detail is what happened, for people.
	Detail string
	// Problem has all members of the answer, such as the holders of a lock that is held.
	Problem map[string]any
}

func (e *Error) Error() string { return e.Kind.Error() + ": " + e.Detail }

// Unwrap returns the kind.
func (e *Error) Unwrap() error { return e.Kind }
