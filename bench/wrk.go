package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os/exec"
	"regexp"
	"strconv"
	"strings"
	"sync/atomic"
	"time"
)

const (
	connections = 32 // enough to keep a small machine busy
	roundTime   = 2  // seconds
)

// side is a server and the request that it gets.
type side struct {
	name    string
	server  *server
	path    string
	headers []string // "Name: value"
	script  string   // of wrk, that chooses paths and headers; empty = none
	cost    cost
}

// cost is what a side has used in the rounds so far.
type cost struct {
	requests int
	cpu      time.Duration
	wall     time.Duration
	p99      []time.Duration // of each round
}

// perRequest is CPU time in microseconds.
func (c *cost) perRequest() float64 { return micros(c.cpu, c.requests) }

func (c *cost) perSecond() float64 { return float64(c.requests) / c.wall.Seconds() }

// takeTurns drives the sides, one after the other, several times over. The
// first round is not counted.
func takeTurns(ctx context.Context, times, connections int, sides ...*side) error {
	for i := range times + 1 {
		for _, s := range sides {
			var round cost
			if err := s.drive(ctx, connections, &round); err != nil {
				return fmt.Errorf("%s: %w", s.name, err)
			}
			if i > 0 {
				s.cost.requests += round.requests
				s.cost.cpu += round.cpu
				s.cost.wall += round.wall
				s.cost.p99 = append(s.cost.p99, round.p99...)
			}
		}
	}
	return ctx.Err()
}

var (
	wrkRequests = regexp.MustCompile(`(\d+) requests in ([\d.]+)(s|m)`)
	wrkP99      = regexp.MustCompile(`99% +([\d.]+)(us|ms|s)`)
	wrkFailed   = regexp.MustCompile(`Non-2xx.*|Socket errors.*`)
)

// drive has wrk ask for the side's page, each connection waiting for its answer.
func (s *side) drive(ctx context.Context, connections int, c *cost) error {
	arguments := []string{"--threads", "1", "--connections", strconv.Itoa(connections), "--duration", strconv.Itoa(roundTime), "--latency"}
	for _, h := range s.headers {
		arguments = append(arguments, "--header", h)
	}
	if s.script != "" {
		arguments = append(arguments, "--script", s.script)
	}
	var out []byte
	used, err := s.server.spent(func() (err error) {
		if out, err = exec.CommandContext(ctx, "wrk", append(arguments, "http://"+s.server.address+s.path)...).CombinedOutput(); err != nil {
			err = fmt.Errorf("wrk: %w: %s", err, out)
		}
		return err
	})
	if err != nil {
		return err
	}
	requests, p99 := wrkRequests.FindSubmatch(out), wrkP99.FindSubmatch(out)
	if failed := wrkFailed.Find(out); failed != nil || requests == nil || p99 == nil {
		return fmt.Errorf("wrk: %s: %s", failed, out)
	}
	if c.requests, err = strconv.Atoi(string(requests[1])); err != nil {
		return err
	}
	if c.wall, err = time.ParseDuration(string(requests[2]) + string(requests[3])); err != nil {
		return err
	}
	worst, err := time.ParseDuration(string(p99[1]) + string(p99[2]))
	c.cpu, c.p99 = used, append(c.p99, worst)
	return err
}

// answer is one answer: its size on the wire, its header and its body's.
type answer struct {
	size   int
	status int
	header http.Header
	body   []byte
}

// ask sends the side's request once.
func (s *side) ask() (a answer, err error) {
	conn, err := net.Dial("tcp", s.server.address)
	if err != nil {
		return a, err
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(10 * time.Second))
	request := "GET " + s.path + " HTTP/1.1\r\nHost: " + s.server.address + "\r\n" + strings.Join(append(s.headers, "", ""), "\r\n")
	if _, err := conn.Write([]byte(request)); err != nil {
		return a, err
	}
	var read atomic.Int64
	r, err := http.ReadResponse(bufio.NewReaderSize(&counter{conn, &read}, 1<<20), nil)
	if err != nil {
		return a, err
	}
	defer r.Body.Close()
	body, err := io.ReadAll(r.Body)
	return answer{int(read.Load()), r.StatusCode, r.Header, body}, err
}

// counter counts the bytes that are read from a connection.
type counter struct {
	net.Conn
	read *atomic.Int64
}

func (c *counter) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	c.read.Add(int64(n))
	return n, err
}

// awaitHit asks until the answer has the status and comes from a cache.
func (s *side) awaitHit(status int, isHit func(http.Header) bool) (a answer, err error) {
	for range 500 {
		if a, err = s.ask(); err == nil && a.status == status && isHit(a.header) {
			return a, nil
		}
		time.Sleep(10 * time.Millisecond)
	}
	return a, errors.Join(err, fmt.Errorf("%s: no hit: %d %v", s.name, a.status, a.header))
}

func ourHit(h http.Header) bool { return strings.HasPrefix(h.Get("Cache-Status"), "listedge; hit") }

func anyHit(http.Header) bool { return true }
