package main

import (
	"context"
	"crypto/rand"
	"errors"
	"slices"
	"strings"

	"github.com/redis/go-redis/v9"

	"listedge/cache"
	"listedge/internal/changefeed"
	"listedge/limiter"
	"listedge/origin/admin"
)

// judgeRights does what a node does, on keys of its own, and finds what Redis
// refuses: for want of a right, of memory, or whatever it says.
func judgeRights(ctx context.Context, client redis.UniversalClient) (findings []admin.Finding) {
	own := "doctor-" + rand.Text()
	for _, part := range []struct {
		name, keys string
		commands   [][]any
	}{
		{"pages", "~page:* ~fill:*", cache.RedisCommands(own)},
		{"limits", "~rl:*", limiter.RedisCommands(own)},
		{"changes", "~{listedge}:*", changefeed.RedisCommands(own)},
	} {
		findings = append(findings, judgePart(ctx, client, "redis "+part.name, part.keys, part.commands))
	}
	return findings
}

// judgePart sends the commands of one part. keys is the right to its keys.
func judgePart(ctx context.Context, client redis.UniversalClient, subject, keys string, commands [][]any) admin.Finding {
	var lacking []string
	var refused error
	for _, command := range commands {
		err := send(ctx, client, command)
		switch {
		case err == nil, errors.Is(err, redis.Nil), redis.HasErrorPrefix(err, "NOSCRIPT"):
		case redis.IsPermissionError(err):
			right := keys
			if _, named, ok := strings.Cut(err.Error(), "run the '"); ok {
				name, _, _ := strings.Cut(named, "'")
				right = "+" + name
			}
			if !slices.Contains(lacking, right) {
				lacking = append(lacking, right)
			}
		case refused == nil:
			refused = err
		}
	}
	switch {
	case len(lacking) > 0:
		return admin.Finding{Subject: subject, Level: admin.Fail, Text: "the user lacks " + strings.Join(lacking, " "),
			Do: "ACL SETUSER with all rights that docs/SECURITY.md lists"}
	case refused != nil:
		return admin.Finding{Subject: subject, Level: admin.Fail, Text: "refused: " + refused.Error(), Do: "mend what Redis says; give it memory if it is full"}
	}
	return admin.Finding{Subject: subject, Level: admin.OK, Text: "all that a node does is allowed"}
}

// send sends one command, or those of a transaction.
func send(ctx context.Context, client redis.UniversalClient, command []any) error {
	if command[0] != "multi" {
		return client.Do(ctx, command...).Err()
	}
	_, err := client.TxPipelined(ctx, func(pipe redis.Pipeliner) error { return pipe.Do(ctx, command[1:]...).Err() })
	return err
}
