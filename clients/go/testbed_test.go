package leasehold

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"
)

// testbed is the URL of the control of clients/testbed.py, which starts servers, and a proxy in front of each that fails
// on request.
var testbed string

func TestMain(m *testing.M) {
	process := exec.Command("python3", "../testbed.py")
	process.Stderr = os.Stderr
	input, err := process.StdinPipe()
	must(err)
	output, err := process.StdoutPipe()
	must(err)
	must(process.Start())
	line, err := bufio.NewReader(output).ReadString('\n')
	must(err)
	testbed = strings.TrimSpace(line)
	code := m.Run()
	input.Close()
	process.Wait()
	os.Exit(code)
}

func must(err error) {
	if err != nil {
		panic(err)
	}
}

type server struct {
	t      *testing.T
	ID     int    `json:"id"`
	URL    string `json:"url"`
	APIKey string `json:"api_key"`
}

type lockState struct {
	State       string `json:"state"`
	QueueLength int    `json:"queue_length"`
	Holders     []struct {
		ExpiresAt string `json:"expires_at"`
		Owner     string `json:"owner"`
	} `json:"holders"`
}

type seenRequest struct {
	Method string `json:"method"`
	Token  string `json:"token"`
	AtMS   int64  `json:"at_ms"`
	Failed string `json:"failed"`
}

func control(t *testing.T, method, path string, query url.Values, into any) {
	t.Helper()
	request, err := http.NewRequest(method, testbed+path+"?"+query.Encode(), nil)
	check(t, err)
	response, err := http.DefaultClient.Do(request)
	check(t, err)
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	check(t, err)
	if response.StatusCode != 200 {
		t.Fatalf("%s: %s", path, body)
	}
	check(t, json.Unmarshal(body, into))
}

func startServer(t *testing.T) *server {
	t.Helper()
	s := &server{t: t}
	control(t, "POST", "/servers", nil, s)
	return s
}

func (s *server) client() *Client {
	client, err := New(s.URL)
	check(s.t, err)
	client.SetAPIKey(s.APIKey)
	return client
}

func (s *server) call(method, action string, query url.Values, into any) {
	s.t.Helper()
	control(s.t, method, fmt.Sprintf("/servers/%d/%s", s.ID, action), query, into)
}

func (s *server) fault(kind, method string, times int) {
	s.call("POST", "fault", url.Values{"kind": {kind}, "method": {method}, "times": {fmt.Sprint(times)}}, &struct{}{})
}

func (s *server) evict(name string) {
	s.call("POST", "evict", url.Values{"name": {name}}, &struct{}{})
}

func (s *server) lock(name string) (state lockState) {
	s.call("GET", "lock", url.Values{"name": {name}}, &state)
	return state
}

// requests are those that the proxy received for the lock "a".
func (s *server) requests() (requests []seenRequest) {
	s.call("GET", "requests", url.Values{"name": {"a"}}, &requests)
	return requests
}

func (s *server) count(method string) (count int) {
	for _, request := range s.requests() {
		if request.Method == method {
			count++
		}
	}
	return count
}

func eventually(t *testing.T, what func() bool) {
	t.Helper()
	for giveUpAt := time.Now().Add(30 * time.Second); !what(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(giveUpAt) {
			t.Fatal("it never happened")
		}
	}
}

func check(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
