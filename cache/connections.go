package cache

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"
)

// connections are the open connections to one Redis server: dialled, encrypted,
// greeted and authenticated. A request takes one of them or goes without Redis.
// It never opens one: that takes several round trips, and a request that runs
// out of time amid them would leave the next one where it began.
//
//	keep ── open, with backoff ──► idle ── take ──► request ── give ─┬─► idle
//	  ▲                                                              └─► closed
//	  └──────── wake: one is broken, or all are in use ◄─────────────────┘
type connections struct {
	client *redis.Client
	idle   chan *redis.Conn // first in, first out; has room for all

	open   atomic.Int32          // in use or idle
	target atomic.Int32          // how many there are to be; at most cap(idle)
	failed atomic.Pointer[error] // why the last one could not be opened; nil = it could
	wake   chan struct{}
	tried  chan struct{} // closed after the first attempt
}

const (
	// leastOpen connections are open before anybody asks for one.
	leastOpen = 4
	// spareConnections of the client's pool are left to the client, which asks a
	// Cluster's servers by them who has what.
	spareConnections = 2
	// openTimeout bounds the opening of one, for which nobody waits.
	openTimeout = 2 * time.Second
	// openPause is how long to wait after an attempt that failed; doubled each
	// time, up to mostPause.
	openPause, mostPause = 50 * time.Millisecond, time.Second
)

var errNoneOpen = errors.New("no connection is open")

func newConnections(client *redis.Client) *connections {
	most := max(1, client.Options().PoolSize-spareConnections)
	c := &connections{client: client, idle: make(chan *redis.Conn, most),
		wake: make(chan struct{}, 1), tried: make(chan struct{})}
	c.target.Store(int32(min(leastOpen, cap(c.idle))))
	return c
}

// keep keeps as many open as there are to be, until ctx ends, or the server is
// none of the Cluster's any more.
func (c *connections) keep(ctx context.Context) {
	defer c.dropIdle()
	tried := sync.OnceFunc(func() { close(c.tried) })
	defer tried()
	pause, ended := openPause, 0
	for {
		if c.open.Load() < c.target.Load() {
			err := c.openOne(ctx)
			tried()
			switch {
			case err == nil:
				pause, ended = openPause, 0
				continue
			case errors.Is(err, redis.ErrClosed):
				return
			case ended < cap(c.idle) && hasEnded(err):
				// The client keeps what was dropped and gives it out again. Under TLS
				// it cannot see that one has ended; it removes it when it is used.
				ended++
				continue
			}
			select {
			case <-ctx.Done():
				return
			case <-time.After(pause):
				pause = min(2*pause, mostPause)
			}
			continue
		}
		select {
		case <-ctx.Done():
			return
		case <-c.wake:
		}
	}
}

// hasEnded reports whether a connection that was open once has ended, and not
// whether none could be opened, or nobody answered on it.
func hasEnded(err error) bool {
	broken := (*net.OpError)(nil)
	return errors.Is(err, io.EOF) || errors.As(err, &broken) && broken.Op != "dial" && !broken.Timeout()
}

func (c *connections) openOne(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, openTimeout)
	defer cancel()
	conn := c.client.Conn()
	if err := tryRead(ctx, conn); err != nil {
		_ = conn.Close()
		c.failed.Store(&err)
		return err
	}
	c.failed.Store(nil)
	c.open.Add(1)
	c.idle <- conn
	return nil
}

// tryRead finds out whether pages could be read.
func tryRead(ctx context.Context, conn *redis.Conn) error {
	err := conn.Get(ctx, entryPrefix).Err()
	if errors.Is(err, redis.Nil) || isElsewhere(err) {
		return nil
	}
	return err
}

// take waits for a connection that is open, until ctx ends, and not at all where
// none is.
func (c *connections) take(ctx context.Context) (*redis.Conn, error) {
	select {
	case conn := <-c.idle:
		return conn, nil
	default:
	}
	if c.open.Load() == 0 {
		if err := c.failed.Load(); err != nil {
			return nil, fmt.Errorf("%w: %w", errNoneOpen, *err)
		}
		return nil, errNoneOpen
	}
	if n := c.target.Load(); int(n) < cap(c.idle) && c.open.Load() >= n && c.target.CompareAndSwap(n, n+1) {
		c.nudge()
	}
	select {
	case conn := <-c.idle:
		return conn, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// give takes a connection back after a call that came to err: whoever takes it
// next must find nothing left of that call. Where it is broken, and not only
// slow, the server was restarted, and the idle ones are broken too. After MOVED
// the client may have given the connection up for good; its every later error
// then looks like that answer.
func (c *connections) give(conn *redis.Conn, err error) {
	_, moved := redis.IsMovedError(err)
	if answered := redis.Error(nil); err == nil || errors.As(err, &answered) && !moved && !redis.IsReadOnlyError(err) {
		c.idle <- conn
		return
	}
	c.drop(conn)
	if moved {
		c.nudge()
		return
	}
	if late := net.Error(nil); !errors.As(err, &late) || !late.Timeout() {
		c.dropIdle()
	}
	c.nudge()
}

func (c *connections) drop(conn *redis.Conn) {
	_ = conn.Close()
	c.open.Add(-1)
}

func (c *connections) dropIdle() {
	for {
		select {
		case conn := <-c.idle:
			c.drop(conn)
		default:
			return
		}
	}
}

func (c *connections) nudge() {
	select {
	case c.wake <- struct{}{}:
	default:
	}
}
