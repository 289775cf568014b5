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
	"listedge/origin/postgres"
)

// Examination is what Examine has found.
type Examination struct {
	Checks   []admin.CheckState
	Database string // which the fleet follows; empty = not known
	Epoch    string // "epoch " and that of its log of changes, or "epoch none"; empty = not known
}

// Examine runs the checks of a node's servers, without a node: it joins no fleet and follows no
// changes. Replicas are no part of it. An error is a setting that cannot work.
func Examine(ctx context.Context, o Options) (e Examination, err error) {
	o.FreshnessBound, o.QueryTimeout, o.DatabaseConnections, o.ReplicaURL = time.Second, postgres.KeyTimeout, 1, nil
	n, err := newNode(o)
	if err != nil {
		return e, err
	}
	defer n.redis.close()
	err = n.openDatabase(ctx, nil)
	if err != nil {
		return e, err
	}
	defer func() { _ = n.database.Close(ctx) }()
	soon, cancel := context.WithTimeout(ctx, postgres.ConnectTimeout)
	defer cancel()
	server, failed := postgres.IdentifyAt(soon, cmp.Or(o.ReplicationURL, o.DatabaseURL))
	if errors.Is(failed, postgres.ErrParameter) {
		return e, failed
	}
	n.finder.Found(server, failed)
	if failed == nil {
		e.Database = server.Identity.String()
	}
	checks := n.checks()
	if n.changes != nil {
		if epoch, err := n.changes.Epoch(ctx); err == nil && failed == nil {
			e.Epoch = "epoch " + cmp.Or(epoch, "none")
			n.followed.ObserveEpoch(epoch)
		}
		close(n.followed.Known)
		claim := fleet.NewClaim(n.redis.log, n.followed)
		n.claim = func(ctx context.Context) (other string) { other, _ = claim.Other(ctx); return other }
		i := slices.IndexFunc(checks, func(c admin.Check) bool { return c.Name == "Redis" })
		checks[i].Run, checks[i].Fine = n.tryRedis, "the user has all rights that a node needs"
		checks = append(checks, admin.Check{Name: "Redis maxmemory", After: []string{"Redis"}, Broken: "pages may take all memory of the machine",
			Run: n.askRedis(func(memory map[string]string) error {
				if memory["maxmemory"] == "0" {
					return remedy.Add(errors.New("maxmemory is not set"), "set maxmemory")
				}
				return nil
			}), Fine: "it is set"})
	}
	e.Checks = admin.Examine(checks)
	if len(n.wrongSetting) > 0 {
		err = <-n.wrongSetting
	}
	return e, err
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
	if slices.Sort(lacking); len(lacking) > 0 {
		return remedy.Add(errors.New("the user lacks "+strings.Join(slices.Compact(lacking), " ")), "ACL SETUSER with all rights that docs/SECURITY.md lists")
	}
	return remedy.Add(failed, redisRemedy(failed))
}
