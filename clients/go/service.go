package leasehold

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"regexp"
	"strings"
	"sync"
)

var (
	lacksScheme = regexp.MustCompile(`^[^:]+:[0-9]`)
	lineEnd     = regexp.MustCompile(`\r?\n$`)
)

// serviceURL reads an address as the commands do: without a scheme it is http, and without a host this machine.
func serviceURL(address string) (string, error) {
	complete := address
	switch {
	case strings.HasPrefix(address, "unix:"):
		return "", fmt.Errorf("leasehold: %q is a Unix socket: use http://localhost and SetTransport, with a DialContext that "+
			"connects to the socket", address)
	case strings.HasPrefix(address, ":"):
		complete = "http://127.0.0.1" + address
	case lacksScheme.MatchString(address):
		complete = "http://" + address
	}
	parsed, err := url.Parse(complete)
	if err != nil || parsed.Host == "" || parsed.Scheme != "http" && parsed.Scheme != "https" {
		return "", fmt.Errorf("leasehold: %q is no URL of a service; write one like http://127.0.0.1:7625", address)
	}
	return strings.TrimRight(complete, "/"), nil
}

// apiKey is the key of the service, which is read again for each request.
type apiKey struct {
	source func(context.Context) (string, error)

	mutex sync.Mutex
	last  string
}

// keyFromEnv is that in the file LEASEHOLD_API_KEY_FILE, or else that of LEASEHOLD_API_KEY.
func keyFromEnv() *apiKey {
	if file := os.Getenv("LEASEHOLD_API_KEY_FILE"); file != "" {
		return &apiKey{source: func(context.Context) (string, error) { return readKeyFile(file) }}
	}
	return constantKey(os.Getenv("LEASEHOLD_API_KEY"))
}

func constantKey(key string) *apiKey {
	return &apiKey{source: func(context.Context) (string, error) { return key, nil }}
}

// current is the key of now, or nothing for a service without keys. While it cannot be had it is the one of before, so
// that no lease is lost meanwhile.
func (k *apiKey) current(ctx context.Context) (string, error) {
	key, err := k.source(ctx)
	if err == nil {
		key, err = sendable(key)
	}
	k.mutex.Lock()
	defer k.mutex.Unlock()
	if err == nil {
		k.last = key
	} else if k.last != "" {
		err = nil
	}
	return k.last, err
}

func readKeyFile(path string) (string, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return "", fmt.Errorf("leasehold: the API key cannot be read: %w", err)
	}
	key, err := sendable(string(text))
	if err == nil && key == "" {
		err = errors.New("leasehold: the API key is empty")
	}
	if err != nil {
		return "", fmt.Errorf("%w: %s", err, path)
	}
	return key, nil
}

// sendable is the key without the end of its line. The error does not show the key, because errors are logged.
func sendable(text string) (string, error) {
	key := lineEnd.ReplaceAllString(text, "")
	if strings.IndexFunc(key, func(letter rune) bool { return letter < '!' || letter > '~' }) >= 0 {
		return "", errors.New("leasehold: the API key has a character that is not allowed in a header; use visible ASCII " +
			"without spaces")
	}
	return key, nil
}
