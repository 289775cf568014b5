package node

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"listedge/cache"
	"listedge/edge/admin"
	"listedge/internal/changefeed"
	"listedge/internal/fleet"
	"listedge/internal/remedy"
	"listedge/limiter"
	originadmin "listedge/origin/admin"
	"listedge/origin/postgres"
)

// followerConnections are those of the follower, which are not in the pools.
const followerConnections = 2

// Examine runs the checks of a node's servers, without a node: it joins no fleet and follows no
// changes. It adds what no node notices before it harms a fleet of so many nodes. An error is a
// setting that cannot work.
func Examine(ctx context.Context, o Options, nodes int) (s admin.State, err error) {
	connections := o.DatabaseConnections + postgres.KeyConnections + postgres.UsageConnections + followerConnections
	o.ReplicationURL = cmp.Or(o.ReplicationURL, o.DatabaseURL)
	o.FreshnessBound, o.QueryTimeout, o.DatabaseConnections = time.Second, postgres.KeyTimeout, 1
	n, err := newNode(o)
	if err != nil {
		return s, err
	}
	defer n.redis.close()
	err = n.openDatabase(ctx, nil)
	if err != nil {
		return s, err
	}
	defer func() { _ = n.database.Close(ctx) }()
	soon, cancel := context.WithTimeout(ctx, postgres.ConnectTimeout)
	defer cancel()
	server, failed := postgres.IdentifyAt(soon, o.ReplicationURL)
	if errors.Is(failed, postgres.ErrParameter) {
		return s, failed
	}
	n.finder.Found(server, failed)
	if n.changes != nil {
		if epoch, err := n.changes.Epoch(ctx); err == nil && failed == nil {
			s.Self.Epoch = cmp.Or(epoch, "none")
			n.followed.ObserveEpoch(epoch)
		}
		close(n.followed.Known)
		claim := fleet.NewClaim(n.redis.log, n.followed)
		n.claim = func(ctx context.Context) (other string) { other, _ = claim.Other(ctx); return other }
	}
	var risks []originadmin.Risk
	s.Checks = admin.Examine(append(n.checks(), admin.Check{Name: "settings", After: []string{"Postgres"}, Broken: "the settings of Postgres are not read",
		Ask: func(ctx context.Context) (err error) {
			risks, err = originadmin.Risks(ctx, n.database.Keys.Pool, o.Region, connections, nodes)
			return err
		}}))
	for _, r := range risks {
		c := admin.CheckState{Check: admin.Check{Name: r.Subject, Fine: r.Fine}, Remedy: r.Remedy}
		if r.Grave {
			c.Effect = admin.Starts
		}
		if r.Why != nil {
			c.Why = *r.Why
		}
		s.Checks = append(s.Checks, c)
	}
	database, _ := n.followed.MarshalText()
	s.Settings = map[string]any{"database": string(database)}
	if len(n.wrongSetting) > 0 {
		err = <-n.wrongSetting
	}
	return s, err
}

// tryRedis sends Redis all commands of nodes, with keys that begin with a prefix that no node uses.
// It returns why some fail: for lack of rights, all of which it names, or by another error.
func (n *Node) tryRedis(ctx context.Context) (failed error) {
	if err := n.redis.log.Ping(ctx).Err(); err != nil && !redis.IsPermissionError(err) { // of a pipeline it would be another
		return remedy.Add(err, redisRemedy(err))
	}
	var lacking []string
	own := n.followed.Prefix() + "doctor-" + rand.Text()
	pipe := n.redis.log.Pipeline()
	for _, command := range slices.Concat([][]any{{"ping"}}, cache.RedisCommands(own), limiter.RedisCommands(own), changefeed.RedisCommands(own)) {
		pipe.Do(ctx, command...)
	}
	answers, _ := pipe.Exec(ctx)
	for _, answer := range answers {
		switch err := answer.Err(); {
		case err == nil, err == redis.Nil, redis.HasErrorPrefix(err, "NOSCRIPT"):
		case redis.IsPermissionError(err):
			right := "~listedge:*"
			if _, named, ok := strings.Cut(err.Error(), "run the '"); ok {
				name, _, _ := strings.Cut(named, "'")
				right = "+" + name
			}
			lacking = append(lacking, right)
		default: // such as a script that lacks a right
			failed = cmp.Or(failed, err)
		}
	}
	slices.Sort(lacking)
	if len(lacking) > 0 {
		return remedy.Add(errors.New("the user lacks "+strings.Join(slices.Compact(lacking), " ")), "ACL SETUSER with all rights that docs/SECURITY.md lists")
	}
	return remedy.Add(failed, redisRemedy(failed))
}
