package cache

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"
)

// servers finds the open connections to the Redis server that has a key: to the
// only one, or to one of a Cluster.
type servers struct {
	only    *connections          // nil = it is a Cluster
	cluster *redis.ClusterClient  // nil = it is not
	unknown atomic.Pointer[error] // why it is not known which server of the Cluster has what, which takes time to ask; nil = it is

	ctx     context.Context // ends the keeping of connections
	stop    context.CancelFunc
	keeping sync.WaitGroup

	mu  sync.Mutex // guards all
	all map[*redis.Client]*connections
}

// firstWait bounds how long the first connections are waited for: they are open
// before the first page is asked for, unless Redis is away or slow.
const firstWait = time.Second

func openServers(client redis.UniversalClient) *servers {
	s := &servers{all: make(map[*redis.Client]*connections)}
	unknown := errNoneOpen
	s.ctx, s.stop = context.WithCancel(context.Background())
	var first <-chan struct{}
	switch client := client.(type) {
	case *redis.Client:
		s.only = s.to(client)
		first = s.only.tried
	case *redis.ClusterClient:
		s.cluster = client
		s.unknown.Store(&unknown)
		found := make(chan struct{})
		first = found
		s.keeping.Go(func() { s.findMasters(found) })
	}
	select {
	case <-first:
	case <-time.After(firstWait):
	}
	return s
}

// findMasters opens connections to the servers of the Cluster as it finds it.
// Those that join later are met when a page of theirs is asked for.
func (s *servers) findMasters(tried chan<- struct{}) {
	first := sync.OnceFunc(func() { close(tried) })
	defer first()
	for pause := openPause; s.ctx.Err() == nil; pause = min(2*pause, mostPause) {
		ctx, cancel := context.WithTimeout(s.ctx, openTimeout)
		err := s.cluster.ForEachMaster(ctx, func(_ context.Context, master *redis.Client) error {
			<-s.to(master).tried
			return nil
		})
		cancel()
		if err == nil {
			s.unknown.Store(nil)
			return
		}
		s.unknown.Store(&err)
		first()
		select {
		case <-s.ctx.Done():
		case <-time.After(pause):
		}
	}
}

// of returns the connections to the server that has the key.
func (s *servers) of(ctx context.Context, key string) (*connections, error) {
	if s.only != nil {
		return s.only, nil
	}
	if err := s.unknown.Load(); err != nil {
		return nil, *err
	}
	master, err := s.cluster.MasterForKey(ctx, key)
	if err != nil {
		return nil, err
	}
	return s.to(master), nil
}

// to returns the connections to that server, and begins to keep them.
func (s *servers) to(client *redis.Client) *connections {
	s.mu.Lock()
	defer s.mu.Unlock()
	c := s.all[client]
	if c == nil {
		c = newConnections(client)
		s.all[client] = c
		s.keeping.Go(func() {
			c.keep(s.ctx)
			s.mu.Lock()
			defer s.mu.Unlock()
			delete(s.all, client)
		})
	}
	return c
}

// any returns the connections to one of the servers; nil = there are none.
func (s *servers) any() *connections {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, c := range s.all {
		return c
	}
	return nil
}

// failure is why one of the servers has no connection open; nil if all have.
func (s *servers) failure() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, c := range s.all {
		if err := c.failed.Load(); err != nil && c.open.Load() == 0 {
			return *err
		}
	}
	if err := s.unknown.Load(); err != nil {
		return *err
	}
	return nil
}

func (s *servers) close() {
	s.stop()
	s.keeping.Wait()
}

// elsewhere reports whether a server of a Cluster said that another one has the
// key, and has the client find out who has what.
func (s *servers) elsewhere(err error) bool {
	is := isElsewhere(err)
	if is && s.cluster != nil {
		s.cluster.ReloadState(s.ctx)
	}
	return is
}

func isElsewhere(err error) bool {
	_, moved := redis.IsMovedError(err)
	_, moving := redis.IsAskError(err)
	return moved || moving || redis.IsTryAgainError(err)
}
