package cache

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"listedge/internal/sandbox/redistest"
)

// opaque is a connection of which nobody can see that it has ended, as nobody
// can of one with TLS.
type opaque struct{ net.Conn }

// However many connections a restart of Redis has ended, pages come from it as
// soon as it is back. One a second would be tried where each is paused after.
func TestConnectionsThatHaveEndedAreNotPausedAfter(t *testing.T) {
	server, direct := startRedis(t)
	o := redistest.Options(server.Addr())
	o.PoolSize = 150
	o.Dialer = func(ctx context.Context, network, address string) (net.Conn, error) {
		conn, err := (&net.Dialer{}).DialContext(ctx, network, address)
		if err != nil {
			return nil, err
		}
		return opaque{conn}, nil
	}
	client := redis.NewClient(o.Simple())
	defer client.Close()
	c := open(t, Options{Redis: client, TTL: time.Hour, MaxStale: time.Hour})
	connections := c.redis.servers.only
	const many = 140 // more than patient seconds
	connections.target.Store(many)
	connections.nudge()
	eventually(t, "many are open", func() bool { return connections.open.Load() == many })
	if err := server.Restart(t.Context()); err != nil {
		t.Fatal(err)
	}
	n := 0
	eventually(t, "a page comes from Redis", func() bool {
		n++
		key := keyOf(fmt.Sprint(n))
		deposit(t, direct, key, "page", 0, time.Hour)
		return forward(t, c, key, brings("another")).Source == Redis
	})
}

// movedToItself is a way to a server which, while moved, answers each command
// with MOVED and its own address, as a Cluster behind a name or NAT may.
func movedToItself(t *testing.T, to string, moved *atomic.Bool) (address string) {
	t.Helper()
	command := func(in *bufio.Reader) (text string, err error) {
		line, err := in.ReadString('\n')
		words, _ := strconv.Atoi(strings.Trim(line, "*\r\n"))
		for text = line; words > 0 && err == nil; words-- {
			if line, err = in.ReadString('\n'); err != nil {
				break
			}
			size, _ := strconv.Atoi(strings.Trim(line, "$\r\n"))
			word := make([]byte, size+2)
			_, err = io.ReadFull(in, word)
			text += line + string(word)
		}
		return text, err
	}
	return wayTo(t, to, func(near, far net.Conn) {
		defer far.Close()
		go func() { _, _ = io.Copy(near, far); near.Close() }()
		for in := bufio.NewReader(near); ; {
			text, err := command(in)
			if err != nil {
				return
			}
			if moved.Load() {
				fmt.Fprintf(near, "-MOVED 1 %s\r\n", near.LocalAddr())
			} else {
				_, _ = io.WriteString(far, text)
			}
		}
	})
}

// A connection that had MOVED as an answer is not used again: the client may have given
// it up, and would answer all that is asked on it with that MOVED.
func TestAConnectionThatWasToldMovedIsDropped(t *testing.T) {
	server, direct := startRedis(t)
	var moved atomic.Bool
	client := redis.NewClient(redistest.Options(movedToItself(t, server.Addr(), &moved)).Simple())
	defer client.Close()
	c := open(t, Options{Redis: client, TTL: time.Hour, MaxStale: time.Hour})
	n := 0
	fromRedis := func() bool {
		n++
		key := keyOf(fmt.Sprint(n))
		deposit(t, direct, key, "page", 0, time.Hour)
		return forward(t, c, key, brings("another")).Source == Redis
	}
	eventually(t, "a page comes from Redis", fromRedis)
	moved.Store(true)
	for range 20 {
		if fromRedis() {
			t.Error("a page of a server that has moved")
		}
	}
	moved.Store(false)
	eventually(t, "a page comes from Redis again", fromRedis)
}
