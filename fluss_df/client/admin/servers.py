"""The part of the admin that is about servers: settings, health, tags and rebalance."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from fluss_df.client.admin.checks import server_ids, text
from fluss_df.client.admin.results import (
    ClusterHealth,
    ClusterHealthStatus,
    ConfigEntry,
    ConfigSource,
    GoalType,
    RebalanceProgress,
    RebalanceResultForBucket,
    RebalanceStatus,
    ServerTag,
    answered,
    member,
)
from fluss_df.client.cluster.table_requests import config_changes
from fluss_df.client.runtime.awaitable import blocking, blocking_only
from fluss_df.client.table_questions import TableQuestions
from fluss_df.errors import FlussError, ProtocolError
from fluss_df.metadata import ServerNode
from fluss_df.protocol import api
from fluss_df.protocol import messages_pb2 as pb
from fluss_df.protocol.message_parts import bucket_of

_APPEND: Final = 2
_SUBTRACT: Final = 3

# a limit of 0 makes tablet servers divide by zero
_RATE_LIMIT: Final = "kv.rocksdb.shared-rate-limiter.bytes-per-sec"
# zero with any unit, as in "0 mb"
_NOTHING: Final = re.compile(r"\s*0+\s*[a-zA-Z]*\s*")


class ServerAdmin(TableQuestions):
    """Describes servers, changes their settings, and moves buckets between them."""

    @blocking
    async def get_server_nodes(self) -> list[ServerNode]:
        """Return the servers that are alive, the coordinator first."""
        return await self._cluster.server_nodes()

    @blocking
    async def get_cluster_health(self) -> ClusterHealth:
        """Return whether all buckets can be used, and all replicas are in sync (from 1.0 on).

        Raises
        ------
        FlussError
            ``UNSUPPORTED_VERSION`` when the coordinator does not know this request.

        Examples
        --------
        >>> admin.get_cluster_health().status  # doctest: +SKIP
        <ClusterHealthStatus.GREEN: 0>
        """
        answer = await self._cluster.request_coordinator(
            api.GET_CLUSTER_HEALTH, pb.GetClusterHealthRequest()
        )
        known = answer.status in list(ClusterHealthStatus)
        return ClusterHealth(
            answer.num_replicas,
            answer.in_sync_replicas,
            answer.num_leader_replicas,
            answer.active_leader_replicas,
            ClusterHealthStatus(answer.status) if known else ClusterHealthStatus.UNKNOWN,
        )

    # ---- settings

    @blocking
    async def describe_cluster_configs(self) -> list[ConfigEntry]:
        """Return the settings of the cluster that are not at their default, sorted by key.

        Raises
        ------
        FlussError
            ``AUTHORIZATION_EXCEPTION`` when the user may not describe the cluster.
        """
        answer = await self._cluster.request_coordinator(
            api.DESCRIBE_CLUSTER_CONFIGS, pb.DescribeClusterConfigsRequest()
        )
        entries = [
            ConfigEntry(
                config.config_key,
                config.config_value if config.HasField("config_value") else None,
                _source(config.config_source),
            )
            for config in answer.configs
        ]
        return sorted(entries, key=lambda entry: entry.key)

    @blocking
    async def alter_cluster_configs(
        self,
        *,
        set_configs: Mapping[str, object] | None = None,
        reset_configs: Iterable[str] = (),
        append_configs: Mapping[str, object] | None = None,
        subtract_configs: Mapping[str, object] | None = None,
    ) -> None:
        """Change settings of a running cluster: all of them, or none.

        Servers allow this for a few settings. Changes survive a restart.

        Parameters
        ----------
        set_configs
            Settings to set.
        reset_configs
            Settings to put back to what the servers were started with.
        append_configs, subtract_configs
            Entries to add to settings that are lists, or to remove from them (servers of 1.0 and
            later). The request is not retried, as it could take effect twice: when its answer is
            lost, an error is raised.

        Raises
        ------
        FlussError
            ``CONFIG_EXCEPTION`` (-1 from servers of 0.9) when the cluster refuses a change, with
            the reason.

        Examples
        --------
        >>> admin.alter_cluster_configs(  # doctest: +SKIP
        ...     set_configs={"kv.rocksdb.shared-rate-limiter.bytes-per-sec": "64mb"}
        ... )
        """
        changes = config_changes(set_configs, reset_configs, what="configs")
        seen = {change.config_key for change in changes}
        lists = (
            (_APPEND, append_configs, "append_configs"),
            (_SUBTRACT, subtract_configs, "subtract_configs"),
        )
        for kind, given, name in lists:
            if not isinstance(given, Mapping | None):
                raise FlussError(f"{name}: expected a dict of key to value, not {given!r}")
            for change in config_changes(given, ()):
                if change.config_key in seen:
                    raise FlussError(f"the setting '{change.config_key}' is named twice")
                seen.add(change.config_key)
                changes.append(
                    pb.AlterConfig(
                        config_key=change.config_key, config_value=change.config_value, op_type=kind
                    )
                )
        for change in changes:
            if change.config_key == _RATE_LIMIT and _NOTHING.fullmatch(change.config_value):
                raise FlussError(
                    f"the setting '{_RATE_LIMIT}' cannot be {change.config_value!r}: tablet servers"
                    " of Fluss 0.9.1 crash with it; name it in reset_configs to have no limit"
                )
        if not changes:
            raise FlussError(
                "no setting to change: give set_configs, reset_configs, append_configs or"
                " subtract_configs"
            )
        once = append_configs or subtract_configs
        await self._cluster.request_coordinator(
            api.ALTER_CLUSTER_CONFIGS,
            pb.AlterClusterConfigsRequest(alter_configs=changes),
            retry_timeout_ms=0 if once else None,
        )

    # ---- tags

    @blocking
    async def add_server_tag(
        self, tablet_servers: Iterable[int], server_tag: ServerTag | str
    ) -> None:
        """Mark tablet servers as going to be offline: all of the named servers, or none.

        Parameters
        ----------
        tablet_servers
            Their ids, as in :meth:`get_server_nodes`. A server may have the tag already.
        server_tag
            A :class:`ServerTag` or its name. A rebalance moves buckets away from servers with a
            tag.

        Raises
        ------
        FlussError
            ``SERVER_NOT_EXIST_EXCEPTION`` for an id that no server has;
            ``SERVER_TAG_ALREADY_EXIST_EXCEPTION`` for a server that has the other tag.
        """
        request = pb.AddServerTagRequest(
            server_ids=server_ids(tablet_servers), server_tag=member(ServerTag, server_tag)
        )
        await self._cluster.request_coordinator(api.ADD_SERVER_TAG, request)

    @blocking
    async def remove_server_tag(
        self, tablet_servers: Iterable[int], server_tag: ServerTag | str
    ) -> None:
        """Remove a tag from tablet servers: from all of the named servers, or none.

        Parameters
        ----------
        tablet_servers
            Their ids. A server may have no tag.
        server_tag
            A :class:`ServerTag` or its name.

        Raises
        ------
        FlussError
            ``SERVER_TAG_NOT_EXIST_EXCEPTION`` for a server that has the other tag.
        """
        request = pb.RemoveServerTagRequest(
            server_ids=server_ids(tablet_servers), server_tag=member(ServerTag, server_tag)
        )
        await self._cluster.request_coordinator(api.REMOVE_SERVER_TAG, request)

    # ---- balance

    @blocking_only
    async def rebalance(self, priority_goals: Sequence[GoalType | str]) -> str:
        """Start moving buckets between tablet servers, and return at once.

        Parameters
        ----------
        priority_goals
            The goals of the rebalance, the most important first: members of :class:`GoalType`, or
            their names.

        Returns
        -------
        str
            The id of the rebalance, for :meth:`list_rebalance_progress`.

        Raises
        ------
        FlussError
            ``REBALANCE_FAILURE_EXCEPTION``, also while another rebalance is running.

        Examples
        --------
        >>> admin.rebalance(["replica_distribution", "leader_distribution"])  # doctest: +SKIP
        '5b3d8f2e-41c7-4d0a-9a59-3f0f6a4a8a77'
        """
        if isinstance(priority_goals, (str, GoalType)):
            priority_goals = [priority_goals]
        elif not isinstance(priority_goals, Iterable):
            raise FlussError(f"invalid goals {priority_goals!r}: expected a list of GoalType")
        request = pb.RebalanceRequest(goals=[member(GoalType, goal) for goal in priority_goals])
        if not request.goals:
            raise FlussError(
                "a rebalance needs a goal: " + ", ".join(goal.name for goal in GoalType)
            )
        answer = await self._cluster.request_coordinator(api.REBALANCE, request)
        return answer.rebalance_id

    @blocking_only
    async def list_rebalance_progress(
        self, rebalance_id: str | None = None
    ) -> RebalanceProgress | None:
        """Return the progress of the last rebalance; None if there was none.

        Parameters
        ----------
        rebalance_id
            The id that the last rebalance must have; None for any.

        Raises
        ------
        FlussError
            ``NO_REBALANCE_IN_PROGRESS_EXCEPTION`` when the last rebalance has another id.
        """
        request = pb.ListRebalanceProgressRequest()
        if rebalance_id is not None:
            request.rebalance_id = text(rebalance_id, "rebalance_id")
        answer = await self._cluster.request_coordinator(api.LIST_REBALANCE_PROGRESS, request)
        if not answer.HasField("rebalance_id"):
            return None
        return RebalanceProgress(
            answer.rebalance_id,
            answered(RebalanceStatus, answer.rebalance_status),
            {
                bucket_of(table.table_id, entry.rebalance_plan): _result(entry)
                for table in answer.table_progress
                for entry in table.buckets_progress
            },
        )

    @blocking
    async def cancel_rebalance(self, rebalance_id: str | None = None) -> None:
        """Stop the last rebalance if it is still running; buckets that were moved stay there.

        Parameters
        ----------
        rebalance_id
            The id that the last rebalance must have; None for any.

        Raises
        ------
        FlussError
            ``NO_REBALANCE_IN_PROGRESS_EXCEPTION`` when the last rebalance has another id.
        """
        request = pb.CancelRebalanceRequest()
        if rebalance_id is not None:
            request.rebalance_id = text(rebalance_id, "rebalance_id")
        await self._cluster.request_coordinator(api.CANCEL_REBALANCE, request)


def _source(name: str) -> ConfigSource:
    try:
        return ConfigSource(name)
    except ValueError:
        raise ProtocolError(
            f"the server names {name!r} as the source of a setting, which this client does not know"
        ) from None


def _result(entry: pb.RebalanceProgressForBucket) -> RebalanceResultForBucket:
    plan = entry.rebalance_plan
    return RebalanceResultForBucket(
        plan.original_leader if plan.HasField("original_leader") else None,
        plan.new_leader if plan.HasField("new_leader") else None,
        tuple(plan.original_replicas),
        tuple(plan.new_replicas),
        answered(RebalanceStatus, entry.rebalance_status),
    )
