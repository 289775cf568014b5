package limiter

import (
	"context"
	"net"
	"sync"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"
)

// cluster finds the Redis node that has a bucket, and keeps a dispatcher for
// each. Pipelines go to the node's own client: the Cluster client's would send
// a call again when it fails, which charges twice.
type cluster struct {
	l      *Limiter
	client *redis.ClusterClient

	mu     sync.Mutex // guards all below
	nodes  map[string]*dispatcher
	guests map[string]*redis.Client // of nodes that another node named, by address
}

func (l *Limiter) openCluster(client *redis.ClusterClient) {
	l.cluster = &cluster{l: l, client: client, nodes: make(map[string]*dispatcher), guests: make(map[string]*redis.Client)}
	l.router = l.newDispatcher(nil)
	l.router.route = l.cluster.find
	go l.router.run()
}

// find returns the dispatcher of the key's owner. It may ask the Cluster, and
// so is for the router's goroutine.
func (c *cluster) find(ctx context.Context, key string) (*dispatcher, error) {
	owner, err := c.client.MasterForKey(ctx, key)
	if err != nil {
		return nil, err
	}
	return c.at(owner.Options().Addr, func() redis.UniversalClient { return owner }), nil
}

// at returns the dispatcher of the node at the address.
func (c *cluster) at(address string, client func() redis.UniversalClient) *dispatcher {
	c.mu.Lock()
	defer c.mu.Unlock()
	d := c.nodes[address]
	if d == nil {
		store := newRedisStore(client(), c.l.redis)
		store.other = c.guest
		d = c.l.newDispatcher(store)
		d.address = address
		c.nodes[address] = d
		go d.run()
	}
	return d
}

// movedTo has the map of the slots read again, and returns whom a node has
// named as the owner of a bucket until then: nil = to be found out.
func (c *cluster) movedTo(address string) *dispatcher {
	c.moved()
	if host, _, err := net.SplitHostPort(address); err != nil || host == "" || host == "?" {
		return nil // the node does not know under which address its clients see the others
	}
	return c.at(address, func() redis.UniversalClient { return c.dial(address) })
}

// guest is a client of a node that need not be on the map yet.
func (c *cluster) guest(address string) redis.UniversalClient {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.dial(address)
}

// dial makes a client as the Cluster client makes its own. Call with mu held.
func (c *cluster) dial(address string) *redis.Client {
	client := c.guests[address]
	if client == nil {
		o := c.client.Options()
		client = redis.NewClient(&redis.Options{
			Addr: address, Username: o.Username, Password: o.Password, TLSConfig: o.TLSConfig, Dialer: o.Dialer,
			CredentialsProviderContext: o.CredentialsProviderContext, Protocol: o.Protocol,
			DialTimeout: o.DialTimeout, ReadTimeout: o.ReadTimeout, WriteTimeout: o.WriteTimeout,
			ContextTimeoutEnabled: true, MaxRetries: -1, DialerRetries: 1, DisableIdentity: true,
			MaintNotificationsConfig: &maintnotifications.Config{Mode: maintnotifications.ModeDisabled},
		})
		c.guests[address] = client
	}
	return client
}

// moved has the map of the slots read again.
func (c *cluster) moved() { c.client.ReloadState(context.Background()) }

// answers reports whether the Cluster can be asked who has what.
func (c *cluster) answers() error {
	ctx, cancel := context.WithTimeout(context.Background(), flightTimeout)
	defer cancel()
	_, err := c.client.MasterForKey(ctx, fleetKey)
	return err
}

// rehome looks whether the buckets of a node that is away have found another,
// and returns a key to try the node with: none when nothing of it is left.
func (c *cluster) rehome(d *dispatcher) (probe string) {
	c.moved()
	for _, b := range d.watched() {
		near := "rl:{" + hashTag(b.key) + "}:probe"
		ctx, cancel := context.WithTimeout(context.Background(), flightTimeout)
		home, err := c.find(ctx, b.key)
		cancel()
		if err != nil { // nobody knows who has what: better luck next time
			return near
		}
		if home != d && b.lease.wanted.CompareAndSwap(false, true) {
			d.give(b, home)
			continue
		}
		if probe == "" {
			probe = near
		}
	}
	return probe
}

// hashTag is what the slot of one of our keys depends on.
func hashTag(key string) string {
	for i := len("rl:{"); i < len(key); i++ {
		if key[i] == '}' {
			return key[len("rl:{"):i]
		}
	}
	return key
}

// drop forgets a node that has nothing any more.
func (c *cluster) drop(d *dispatcher) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.nodes[d.address] == d {
		delete(c.nodes, d.address)
	}
}

// all nodes' dispatchers.
func (c *cluster) all() (all []*dispatcher) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, d := range c.nodes {
		all = append(all, d)
	}
	return all
}

func (c *cluster) leave(again bool) {
	all := c.all()
	for _, d := range all {
		if !again {
			d.end()
		}
	}
	for _, d := range all {
		<-d.ended
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, client := range c.guests {
		_ = client.Close()
	}
}

// hand is a router's flight: every bucket is given to whoever has it.
func (d *dispatcher) hand(batch []*Bucket) {
	if d.away.Load() {
		d.forsake(batch)
		return
	}
	report, err := d.breaker.Allow()
	if err != nil {
		d.forsake(batch)
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), flightTimeout)
	defer cancel()
	homes := make(map[*dispatcher][]*Bucket) // whole batches: a request's two buckets stay together
	for i, b := range batch {
		var home *dispatcher
		if home, err = d.route(ctx, b.key); err != nil {
			d.l.fail(err)
			d.forsake(batch[i:])
			break
		}
		b.home.Store(home)
		homes[home] = append(homes[home], b)
	}
	for home, buckets := range homes {
		home.want(buckets...)
	}
	report(err)
}
