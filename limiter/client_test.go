package limiter_test

import (
	"context"
	"encoding/binary"
	"math"

	"github.com/redis/go-redis/v9"

	"listedge/internal/sandbox/redistest"
	. "listedge/limiter"
	"listedge/limiter/lease"
)

// call is one call of a script, as Redis gets it.
type call struct {
	key       string
	arguments any // *lease.Call, *count or *beat
	answer    []int64
}

// beat is what a heartbeat says.
type beat struct {
	id, state string
	until     int64
}

// server stands for Redis: for the one server, or for the masters of a Cluster.
type server interface {
	execute(ctx context.Context, calls []*call) error // all of a pipeline
	masterOf(key string) int
}

// newLimiter makes a limiter whose Redis the server is.
func newLimiter(o Options, s server) *Limiter {
	o.Redis = &client{server: s}
	return New(o)
}

// client is a client of the server. It can do what the limiter needs of one.
type client struct {
	redis.UniversalClient
	server
}

// pipeline is a pipeline of calls.
type pipeline struct {
	redis.Pipeliner
	server
	commands []redis.Cmder
}

var masters = []*redis.Client{redis.NewClient(redistest.Options("first").Simple()), redis.NewClient(redistest.Options("second").Simple())}

func (c *client) MasterForKey(_ context.Context, key string) (*redis.Client, error) {
	return masters[c.masterOf(key)], nil
}

func (c *client) Pipeline() redis.Pipeliner { return &pipeline{server: c.server} }

func (p *pipeline) Process(_ context.Context, c redis.Cmder) error {
	p.commands = append(p.commands, c)
	return nil
}

func (p *pipeline) Exec(ctx context.Context) ([]redis.Cmder, error) {
	calls := make([]*call, len(p.commands))
	for i, c := range p.commands {
		a := c.Args()
		calls[i] = &call{key: a[3].(string), arguments: argumentsOf(a[4:])}
	}
	err := p.execute(ctx, calls)
	for i, c := range p.commands {
		c.SetErr(err)
		values := make([]any, len(calls[i].answer))
		for j, n := range calls[i].answer {
			values[j] = n
		}
		c.(interface{ SetVal(any) }).SetVal(values)
	}
	return nil, err
}

// argumentsOf tells the scripts apart by the number of their arguments.
func argumentsOf(a []any) any {
	switch len(a) {
	case 1:
		n := unpacked(a[0].([]byte))
		return &lease.Call{Policy: Policy{Rate: n[0], Burst: n[1], Version: n[2]}, Need: n[3], Hold: n[4], Extra: n[5], Arrived: n[6], Fair: n[7],
			Slice: n[8], ReleasedNow: n[9], ReleasedBefore: n[10], Returned: n[11], Debt: n[12], Nodes: n[13], Missing: n[14], Until: n[15]}
	case 3:
		return &beat{a[0].(string), a[1].(string), a[2].(int64)}
	}
	return &count{tokens: a[0].(int64), run: a[1].(int64), number: a[2].(int64), floor: a[3].(int64), need: a[4].(int64), want: a[5].(int64),
		nodes: a[6].(int64), last: a[7].(int64), life: a[8].(int64)}
}

func answerOf(r *lease.Reply) []int64 {
	return []int64{r.Granted, r.Leased, r.Level, r.Wait, r.Slice, r.Lasts, r.Held, r.Demand}
}

// unpacked reads numbers in their form: little-endian doubles.
func unpacked(p []byte) (numbers []int64) {
	for ; len(p) >= 8; p = p[8:] {
		numbers = append(numbers, int64(math.Float64frombits(binary.LittleEndian.Uint64(p))))
	}
	return numbers
}
