package leasehold

import (
	"bytes"
	"context"
	"errors"
	"log"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

const wrongKey = "wrong-key-0123456789abcdef"

func keyFile(t *testing.T, text string) string {
	file := filepath.Join(t.TempDir(), "token")
	check(t, os.WriteFile(file, []byte(text), 0o600))
	t.Setenv("LEASEHOLD_API_KEY_FILE", file)
	return file
}

func TestAKeyFileIsReadForEachRequest(t *testing.T) {
	server := startServer(t)
	file := keyFile(t, wrongKey)
	// The file comes first, as with the commands.
	t.Setenv("LEASEHOLD_API_KEY", wrongKey)
	client, err := New(server.URL)
	check(t, err)
	if _, err := client.Acquire(background, "a"); !errors.Is(err, ErrRefused) {
		t.Fatal(err)
	}
	check(t, os.WriteFile(file, []byte(server.APIKey+"\n"), 0o600))
	lease, err := client.Acquire(background, "a", WithTTL(2*time.Second))
	check(t, err)
	// Such a file is replaced now and then, and the key of before is good meanwhile.
	check(t, os.Remove(file))
	eventually(t, func() bool { return server.count("PUT") >= 2 })
	if !lease.Held() {
		t.Fatal("not held")
	}
	check(t, lease.Release())
}

func TestAKeyThatCannotBeSentIsAnErrorThatDoesNotShowIt(t *testing.T) {
	server := startServer(t)
	client := server.client()
	for _, key := range []string{wrongKey + "\n\n", wrongKey + " x", wrongKey + "é"} {
		client.SetAPIKey(key)
		_, err := client.Acquire(background, "a")
		if err == nil || !strings.Contains(err.Error(), "visible ASCII") || strings.Contains(err.Error(), wrongKey) {
			t.Fatal(err)
		}
	}
	for _, text := range []string{"", "\n", wrongKey + "\n\n"} {
		keyFile(t, text)
		other, err := New(server.URL)
		check(t, err)
		_, err = other.Acquire(background, "a")
		if err == nil || !strings.Contains(err.Error(), "token") || strings.Contains(err.Error(), wrongKey) {
			t.Fatal(err)
		}
	}
	if len(server.requests()) != 0 {
		t.Fatal("something was sent")
	}
	client.SetAPIKey(server.APIKey + "\r\n")
	lease, err := client.Acquire(background, "a")
	check(t, err)
	check(t, lease.Release())
}

func TestAKeyMayComeFromAFunction(t *testing.T) {
	server := startServer(t)
	client := server.client()
	sealed := errors.New("the vault is sealed")
	keys := make(chan string, 100)
	client.SetAPIKeyFunc(func(context.Context) (string, error) {
		select {
		case key := <-keys:
			return key, nil
		default:
			return "", sealed
		}
	})
	if _, err := client.Acquire(background, "a"); !errors.Is(err, sealed) || len(server.requests()) != 0 {
		t.Fatal(err)
	}
	keys <- server.APIKey
	lease, err := client.Acquire(background, "a", WithTTL(2*time.Second))
	check(t, err)
	eventually(t, func() bool { return server.count("PUT") >= 2 })
	check(t, lease.Release())
}

func TestARefusedRenewalIsLoggedOnceAndNamedByTheLoss(t *testing.T) {
	var logged bytes.Buffer
	log.SetOutput(&logged)
	defer log.SetOutput(os.Stderr)
	server := startServer(t)
	body := `{"code":"unauthorized","detail":"the key is unknown"}`
	server.answer("PUT", "100", url.Values{"status": {"401"}, "body": {body}})
	lease, err := server.client().Acquire(background, "a", WithTTL(time.Second))
	check(t, err)
	<-lease.Lost()
	loss := lease.Release()
	var problem *Error
	if !errors.As(loss, &problem) || problem.Code != "lease_expired" {
		t.Fatal(loss)
	}
	if text := loss.Error(); !strings.Contains(text, "401") || !strings.Contains(text, "the key is unknown") {
		t.Fatal(text)
	}
	if text := logged.String(); strings.Count(text, "401") != 1 || !strings.Contains(text, "the key is unknown") {
		t.Fatal(text)
	}
}

func TestAURLNeedsNoScheme(t *testing.T) {
	server := startServer(t)
	port := server.URL[strings.LastIndex(server.URL, ":"):]
	for _, address := range []string{strings.TrimPrefix(server.URL, "http://"), port} {
		client, err := New(address)
		check(t, err)
		client.SetAPIKey(server.APIKey)
		lease, err := client.Acquire(background, "a")
		check(t, err)
		check(t, lease.Release())
	}
	for _, address := range []string{"", "ftp://a", "localhost", "http://", "http://a:x", "unix:/run/leasehold.sock"} {
		if _, err := New(address); err == nil || !strings.HasPrefix(err.Error(), "leasehold: ") {
			t.Fatal(address, err)
		}
	}
}
