"""The 106 faults of the reference implementation: what each would be, and which tests show that it is absent here.

Numbers are those of the published list. A fault without tests says why: it cannot occur here, or holds here too and
why. Tests are named by file and function, seen from ``tests/``; when collected they carry the mark ``reference_fault``.
"""

from __future__ import annotations

from typing import NamedTuple


class Fault(NamedTuple):
    """One fault: its number, what goes wrong, the tests that show it absent, or the reason why there are none."""

    number: int
    what: str
    tests: tuple[str, ...] = ()
    reason: str = ""


def _of(number: int, what: str, *tests: str) -> Fault:
    return Fault(number, what, tests)


SOCKET, HTTP, HELLO = "gateway/test_frames_socket.py", "gateway/test_http.py", "gateway/test_handshake_socket.py"
SESSIONS, FRAMES, DELIVERY, STATE, COST = (
    f"faults/test_{name}.py" for name in ("sessions", "frames", "delivery", "state", "cost")
)
ENDINGS, LINEAGE, ITEM = (f"authority/test_{name}.py" for name in ("mission_endings", "lineage", "work_item"))
RESULT, RESULTS, FOUNDING = (f"authority/test_{name}.py" for name in ("mission_result", "results", "mission_founding"))
COORDINATION, EXECUTION, MEMBERS = (
    f"authority/test_{name}.py" for name in ("mission_coordination", "execution", "membership")
)
MESSAGES, OFFERS, ENVELOPE = (f"authority/test_{name}.py" for name in ("messages", "offers", "mission_envelope"))
ORGANIZATION, DECISIONS = "authority/test_organization.py", "authority/test_decisions.py"
CONFORM, ADMISSION = "interop/test_events_conform.py", "trust/test_admission.py"

FAULTS: tuple[Fault, ...] = (
    # --- sessions and connections ---
    _of(
        1,
        "people and services have no way to authenticate over the network",
        f"{HTTP}::test_humans_services_and_agents_open_sessions",
        f"{HTTP}::test_a_command_needs_no_session_and_is_answered_by_its_events",
    ),
    _of(
        2,
        "Commands handed over in process are believed without a look at their signature",
        f"{SESSIONS}::test_a_service_is_who_signs_as_one_also_in_process",
        "node/test_gates.py::test_nothing_is_decided_or_written_before_all_stages_passed",
    ),
    _of(
        3,
        "a session ends after a quarter of an hour, and running work with it",
        f"{SESSIONS}::test_a_live_connection_outlives_its_token_and_its_work",
    ),
    _of(
        4,
        "a fenced connection goes on receiving",
        f"{HELLO}::test_a_newer_session_fences_the_older_one",
        f"{HELLO}::test_a_fenced_connection_that_says_nothing_is_closed",
        "gateway/test_delivery.py::test_a_fenced_receiver_gets_nothing",
    ),
    _of(
        5,
        "a stale Session Epoch is reported as a bad signature",
        "gateway/test_error_codes.py::test_the_code_over_a_socket",
        f"{ENVELOPE}::test_each_epoch_must_be_the_current_one",
    ),
    _of(
        6,
        "an Agent whose session could not be opened once can never connect again",
        f"{SESSIONS}::test_a_session_that_could_not_be_opened_hinders_no_later_one",
        f"{SESSIONS}::test_an_agent_without_a_card_connects_as_soon_as_it_has_one",
    ),
    _of(
        7,
        "challenges are kept for ever, and neither handshakes, connections nor frames have bounds",
        f"{HTTP}::test_abandoned_challenges_cost_nothing",
        f"{HELLO}::test_a_handshake_that_takes_too_long_is_ended",
        "gateway/test_server.py::test_connections_are_bounded",
        f"{SOCKET}::test_a_flood_ends_the_connection",
    ),
    _of(
        8,
        "handshakes wait for each other behind the store",
        f"{SESSIONS}::test_a_handshake_does_not_wait_for_another_one",
    ),
    _of(
        9,
        "new Agents, new keys and revocations need a restart, and an Agent has one key",
        f"{SESSIONS}::test_new_agents_and_new_keys_need_no_restart",
        "gateway/test_server.py::test_revoking_a_key_closes_its_connection_at_once",
    ),
    _of(
        10,
        "a node without a key makes one up under a constant name",
        "node/test_lost_files.py::test_a_second_authority_key_is_bound_only_when_told",
        f"{HTTP}::test_a_token_survives_a_restart_of_the_node",
    ),
    # --- frames and delivery ---
    _of(
        11,
        "the first refusal ends the connection with all of its Groups",
        f"{SOCKET}::test_a_misfit_is_answered_and_costs_nothing",
        f"{FRAMES}::test_every_misfit_is_answered_and_costs_nothing",
    ),
    _of(
        12,
        "connections end without the WebSocket's close frame",
        f"{HELLO}::test_a_wrong_first_frame_ends_the_connection",
        "gateway/test_server.py::test_stopping_answers_what_was_accepted_and_says_goodbye",
    ),
    _of(
        13,
        "frames and payloads with certain faults get no answer at all",
        f"{SOCKET}::test_a_misfit_is_answered_and_costs_nothing",
        f"{FRAMES}::test_every_misfit_is_answered_and_costs_nothing",
    ),
    _of(
        14,
        "a binary message is taken for a fault of the node",
        f"{SOCKET}::test_a_binary_message_ends_the_connection_unread",
    ),
    _of(
        15,
        "an ERROR tells neither what it answers nor whether it is fatal",
        f"{SOCKET}::test_a_refused_command_names_its_frame_and_action",
        f"{SOCKET}::test_the_action_id_of_a_command_that_fails_its_schema_is_given",
        "gateway/test_error_codes.py::test_the_code_over_a_socket",
    ),
    _of(
        16,
        "an issuer that does not follow the Group never hears that it was accepted",
        f"{SOCKET}::test_a_receipt_reaches_its_issuer_unsubscribed",
        f"{SOCKET}::test_a_filtered_receipt_reaches_its_issuer",
    ),
    _of(
        17,
        "of several Events of one Command only the first is pushed",
        f"{DELIVERY}::test_all_events_of_a_command_are_pushed_at_once",
    ),
    _of(
        18,
        "a retry is refused after a reconnect, or where the Command moved its own epoch",
        f"{DELIVERY}::test_a_retry_is_answered_after_a_reconnect",
        f"{DELIVERY}::test_a_retry_is_answered_although_it_moved_its_own_epoch",
        "client/test_client.py::test_a_command_whose_answer_was_lost_is_sent_again_byte_for_byte",
    ),
    _of(
        19,
        "a retry is pushed to all subscribers once more",
        f"{SOCKET}::test_a_duplicate_is_answered_to_its_issuer_only",
    ),
    _of(
        20,
        "a remembered Cursor wins over the position that a client states",
        f"{SOCKET}::test_the_position_wins_over_the_cursor",
    ),
    _of(
        21,
        "Cursors are lost with the process",
        f"{SOCKET}::test_an_ack_moves_durable_cursors_forward_only",
        "client/test_client.py::test_acknowledged_cursors_are_durable",
    ),
    _of(
        22,
        "an ACK is believed whatever it says",
        f"{SOCKET}::test_an_ack_beyond_the_head_or_of_a_foreign_group_moves_nothing",
    ),
    _of(
        23,
        "a replay ends after a thousand Events without a word, and so does the search for an Approval",
        f"{DELIVERY}::test_a_replay_goes_on_to_its_end_and_an_approval_is_found_behind_it",
    ),
    _of(
        24,
        "a subscriber that does not read blocks those who send",
        "gateway/test_server.py::test_one_that_never_reads_hinders_nobody",
        "gateway/test_delivery.py::test_a_group_over_its_bound_is_paused_and_the_other_goes_on",
    ),
    _of(
        25,
        "a subscriber whose socket is dead costs the issuer its connection",
        f"{DELIVERY}::test_a_subscriber_whose_socket_died_costs_its_issuer_nothing",
        "gateway/test_floods.py::test_a_connection_that_cannot_be_written_to_is_cut_alone",
    ),
    _of(
        26,
        "Events accepted during a replay are lost or overtake each other",
        "gateway/test_delivery.py::test_replay_and_live_meet_without_gap_or_double",
    ),
    _of(
        27,
        "a filter also cuts the replay",
        f"{SOCKET}::test_a_filter_narrows_what_is_live_and_nothing_else",
    ),
    _of(
        28,
        "a filter for a WorkItem hides its authorization and what is said about it; nothing is announced",
        f"{DELIVERY}::test_a_filter_for_a_work_item_lets_through_what_is_about_it",
    ),
    _of(
        29,
        "no reader is told that its position is too old, nor recovers from a snapshot",
        "gateway/test_trimmed_groups.py::test_a_position_below_the_trim_point_is_told_of_the_snapshot",
        "client/test_restore.py::test_a_reader_behind_the_trim_point_restores_and_goes_on",
    ),
    _of(
        30,
        "Presence in a PING goes nowhere",
        f"{SOCKET}::test_presence_is_kept_for_a_while_and_moves_nothing",
    ),
    _of(
        31,
        "a provisional Member cannot follow the Group whose offer it may accept",
        "gateway/test_delivery.py::test_a_provisional_member_reads_until_it_runs_out",
    ),
    _of(
        32,
        "a client cannot cope with Events that are withheld from it",
        "client/test_feed.py::test_an_event_in_order_proves_that_what_lies_below_was_withheld",
        "client/test_client.py::test_attention_is_asked_for_again_after_a_reconnect",
    ),
    _of(
        33,
        "one refused Group in a SUBSCRIBE ends the others",
        f"{SOCKET}::test_foreign_and_invented_groups_look_alike_and_hinder_no_other",
    ),
    _of(
        34,
        "several servers on one store do not tell each other",
        "node/test_life.py::test_a_second_node_on_one_file_is_told_who_holds_it",
        "cli/test_serve.py::test_a_second_serve_names_the_first",
    ),
    # --- error codes ---
    _of(
        35,
        "some codes are never used, and others stand for something else",
        "gateway/test_error_codes.py::test_the_code_over_a_socket",
        "gateway/test_error_codes.py::test_no_code_is_missing",
    ),
    _of(
        36,
        "a stale Membership Epoch has two codes, neither the right one",
        "gateway/test_error_codes.py::test_the_code_over_a_socket",
        f"{ENVELOPE}::test_each_epoch_must_be_the_current_one",
    ),
    _of(
        37,
        "codes are chosen by words in an English text",
        "protocol/test_errors.py::test_there_is_one_class_and_one_status_for_each_of_the_27_codes",
        "trust/test_verification.py::test_every_refused_signature_looks_the_same_on_the_wire",
    ),
    _of(
        38,
        "details are spelled in another way and repeat what was refused",
        f"{FRAMES}::test_every_misfit_is_answered_and_costs_nothing",
        f"{FRAMES}::test_a_refused_message_is_not_repeated_to_its_sender",
    ),
    # --- signed documents and admission ---
    _of(
        39,
        "nothing records when a document was first admitted",
        "store/test_commit.py::test_an_accepted_command_has_its_first_admission",
        f"{ADMISSION}::test_a_later_end_leaves_what_was_admitted_valid",
    ),
    _of(
        40,
        "identifiers in the Registry are not looked at",
        "trust/test_verification.py::test_stage_4",
        "conformance/test_bundles.py::test_the_published_bundle_passes",
    ),
    _of(
        41,
        "clocks may not differ at all",
        "node/test_life.py::test_a_command_must_be_fresh_on_both_sides",
        "testing/test_faults.py::test_clocks_may_differ_within_the_window",
    ),
    _of(
        42,
        "Events are stored unsigned and signed anew at each delivery",
        f"{CONFORM}::test_every_event_verifies_with_an_independent_library",
        f"{COST}::test_an_event_is_rendered_once_for_all_who_get_it",
    ),
    _of(
        43,
        "which check failed is thrown away",
        "node/test_life.py::test_a_refused_signature_tells_the_wire_nothing_and_the_audit_everything",
        "store/test_commit.py::test_a_failed_verification_in_a_group_is_referred_to_in_its_policy_log_without_the_reason",
    ),
    _of(
        44,
        "documents inside Commands are not verified by their own signatures",
        "store/test_commit.py::test_documents_inside_a_command_are_admitted_with_it",
        f"{RESULT}::test_an_approval_of_somebody_else_or_with_a_bad_signature_decides_nothing",
        "authority/test_artifacts.py::test_manifests_that_are_not_published",
        f"{ORGANIZATION}::test_cards_are_signed_by_the_registry_service",
    ),
    _of(
        45,
        "the signature of a Context Package covers members that it does not have",
        "authority/test_messages_packages.py::test_an_altered_package_is_refused",
        f"{CONFORM}::test_every_event_and_what_it_carries_fits_the_normative_schemas",
        f"{DELIVERY}::test_a_retry_is_answered_although_it_moved_its_own_epoch",
    ),
    _of(
        46,
        "no Execution Approval from outside can satisfy the check before a start",
        f"{DELIVERY}::test_a_replay_goes_on_to_its_end_and_an_approval_is_found_behind_it",
    ),
    _of(
        47,
        "a deeply nested Command is a fault of the node",
        f"{FRAMES}::test_nesting_of_any_depth_is_answered",
    ),
    # --- payloads and identifiers ---
    _of(
        48,
        "what Events carry does not fit the normative schemas",
        f"{CONFORM}::test_every_event_and_what_it_carries_fits_the_normative_schemas",
    ),
    _of(
        49,
        "services have another name inside payloads",
        f"{FRAMES}::test_services_are_called_so_in_payloads_too",
    ),
    _of(
        50,
        "prose is cut and trimmed, and a Message is one text",
        f"{FRAMES}::test_prose_keeps_its_length_and_its_spaces",
    ),
    _of(
        51,
        "an identifier that is none is committed, and its Group cannot be read any more",
        f"{FRAMES}::test_every_misfit_is_answered_and_costs_nothing",
        f"{FRAMES}::test_a_group_with_an_identifier_of_any_kind_can_be_read",
    ),
    _of(
        52,
        "an Event has other identifiers in references than on the wire",
        f"{STATE}::test_identifiers_of_events_are_the_same_wherever_they_are_told",
    ),
    _of(
        53,
        "a Message that claims authority is taken",
        f"{FRAMES}::test_every_misfit_is_answered_and_costs_nothing",
        f"{MESSAGES}::test_what_is_no_message",
    ),
    _of(
        54,
        "envelope and payload may contradict each other",
        f"{MESSAGES}::test_the_conversation_may_stand_in_the_envelope_but_not_differ",
        f"{ITEM}::test_exclusive_work_only_and_ids_that_agree",
    ),
    _of(
        55,
        "nobody is told the revisions and epochs that Commands have to state",
        f"{STATE}::test_every_event_tells_the_revision_that_the_next_command_has_to_state",
    ),
    # --- Missions and authority ---
    _of(
        56,
        "an expected revision is ignored by many kinds",
        f"{EXECUTION}::test_every_kind_compares_the_revision_that_it_states",
        f"{RESULT}::test_an_expected_revision_is_compared",
    ),
    _of(
        57,
        "a service can neither end a Mission nor appoint a Coordinator",
        f"{ENDINGS}::test_coordinator_and_policy_terminate_a_live_mission",
        f"{COORDINATION}::test_owner_and_organization_replace_a_silent_coordinator_and_nobody_else",
    ),
    _of(
        58,
        "the owner cannot author work in an emergency",
        f"{ITEM}::test_the_owner_authors_only_in_a_declared_emergency",
    ),
    _of(
        59,
        "a Mission needs no budget and no approval policy, and deadlines mean nothing",
        f"{FOUNDING}::test_a_mission_that_lacks_something_is_not_begun",
        f"{ITEM}::test_a_contract_stays_within_its_mission",
        f"{OFFERS}::test_nothing_is_offered_past_the_contracts_deadline",
    ),
    _of(
        60,
        "a Coordinator whose lease lapsed can never have it again",
        f"{COORDINATION}::test_a_lapsed_lease_is_granted_anew_to_the_same_agent",
    ),
    _of(
        61,
        "a Coordinator is replaced without hand-over, and its lease is no whole Lease",
        f"{COORDINATION}::test_a_hand_over_package_reaches_the_replacement",
        f"{COORDINATION}::test_a_replacement_assigns_nothing_before_it_reconciled",
        f"{ENVELOPE}::test_a_coordinator_lease_states_all_it_must",
    ),
    _of(
        62,
        "a Coordinator may be the only reviewer of its own result",
        f"{RESULTS}::test_a_coordinator_never_reviews_its_own_output_alone",
    ),
    _of(
        63,
        "an Approval cannot be revoked, denied or given under conditions",
        f"{FOUNDING}::test_a_revocation_is_a_new_record_and_erases_nothing",
        f"{RESULT}::test_changes_are_requested_addressed_and_submitted_again",
        f"{EXECUTION}::test_an_approval_ends_in_time_and_with_its_epoch",
    ),
    _of(
        64,
        "results of cancelled work are submitted, and those of approved children are not",
        f"{RESULT}::test_only_artifacts_of_verified_submissions_are_submitted",
        f"{LINEAGE}::test_an_approved_child_is_the_result_of_its_parent_item",
        "testing/test_states.py::test_a_work_item_becomes_a_child_mission_that_its_coordinator_owns",
    ),
    _of(
        65,
        "progress is not derived",
        "authority/test_views.py::test_progress_is_derived_and_every_input_changes_it",
    ),
    _of(
        66,
        "the child of an ended WorkItem lives on, and its approval revives the WorkItem",
        f"{STATE}::test_ending_a_promoted_item_ends_its_child_for_good",
        f"{LINEAGE}::test_ending_a_promoted_item_cancels_its_child",
    ),
    _of(
        67,
        "a terminated Mission leaves its descendants running",
        f"{STATE}::test_a_terminated_mission_takes_its_descendants_with_it",
    ),
    _of(
        68,
        "a cancelled child is not told to its parent, whose WorkItem is stuck for ever",
        f"{STATE}::test_a_cancelled_child_is_told_to_its_parent_whose_item_goes_on",
        f"{DECISIONS}::test_an_item_is_unblocked_once_its_child_has_ended",
    ),
    _of(
        69,
        "a WorkItem whose child runs can be offered",
        f"{LINEAGE}::test_a_promoted_item_is_neither_unblocked_nor_offered_while_its_child_runs",
    ),
    _of(
        70,
        "nobody can approve an execution in a child Mission",
        f"{STATE}::test_the_root_owner_approves_an_execution_in_a_child",
    ),
    _of(
        71,
        "the human at the root cannot look into child Missions",
        f"{LINEAGE}::test_the_root_owner_is_in_every_descendant",
        "authority/test_views.py::test_owners_see_the_whole_tree",
    ),
    _of(
        72,
        "the end of a Mission is not told for its WorkItems and leases",
        f"{ENDINGS}::test_a_cancelled_mission_cancels_its_unfinished_work",
        f"{ENDINGS}::test_a_terminated_mission_fails_its_unfinished_work_with_the_report",
    ),
    # --- work ---
    _of(
        73,
        "a contract cannot be revised, and a changed one binds without a new acceptance",
        f"{OFFERS}::test_a_revision_rises_by_one_and_is_accepted_anew",
        f"{ITEM}::test_a_live_owner_keeps_the_contract_that_it_accepted",
    ),
    _of(
        74,
        "a contract lacks much of what the protocol puts into it",
        f"{ITEM}::test_a_contract_without_a_member_is_incomplete",
        f"{ITEM}::test_an_empty_member_is_a_missing_one",
    ),
    _of(75, "a failure is reported without Evidence", f"{RESULTS}::test_a_failure_is_reported"),
    _of(
        76,
        "the checkpoint of a blocked WorkItem stands in no Event",
        f"{EXECUTION}::test_a_block_saves_a_checkpoint_and_names_its_resolution",
    ),
    _of(
        77,
        "most leases are no objects, have no start deadline, and last as long as a Worker likes",
        "authority/test_leases.py::test_every_lease_document_is_whole",
        f"{EXECUTION}::test_lease_lengths_are_cut_to_policy",
        f"{DECISIONS}::test_who_starts_too_late_has_lost_the_item",
    ),
    _of(
        78,
        "a renewal of the execution shortens the ownership",
        f"{STATE}::test_renewing_an_execution_lease_shortens_no_ownership",
        f"{EXECUTION}::test_a_short_resume_does_not_shorten_ownership",
    ),
    _of(
        79,
        "a cancelled dependency blocks those who wait for it for good",
        f"{ITEM}::test_nothing_waits_for_what_is_cancelled",
        f"{ITEM}::test_a_substitute_stands_in_for_a_failed_item",
    ),
    _of(
        80,
        "asking for shared ownership has no effect",
        f"{DECISIONS}::test_there_is_no_work_without_exclusive_ownership",
    ),
    _of(
        81,
        "Evidence belongs to no criterion, and failed Evidence is as good as any",
        f"{RESULTS}::test_a_submission_covers_every_criterion",
        f"{RESULTS}::test_submissions_that_prove_nothing",
    ),
    _of(
        82,
        "there are no progress reports and no estimates",
        f"{EXECUTION}::test_progress_is_recorded_with_a_renewal",
        "authority/test_views.py::test_estimates_and_approvals_stand_in_progress",
    ),
    _of(
        83,
        "manifests lack address and size, and content is never compared with its hash",
        "authority/test_artifacts.py::test_manifests_that_are_not_published",
        f"{HTTP}::test_a_wrong_digest_is_refused_and_leaves_nothing",
        "store/test_artifacts.py::test_what_went_in_comes_out_under_its_sha256",
    ),
    _of(
        84,
        "there are no review and restricted Conversations, and what was redacted stays readable",
        f"{MESSAGES}::test_review_and_restricted_conversations_are_opened",
        "store/test_erasure.py::test_an_erased_message_is_gone_from_log_command_and_rows",
    ),
    _of(
        85,
        "how long an Agent may work offline is its own statement",
        "authority/test_offline.py::test_progress_outside_the_window_is_refused",
    ),
    _of(
        86,
        "nobody can ask for a Capability Token, and none is checked",
        f"{HTTP}::test_tokens_for_tools",
        "authority/test_tokens.py::test_a_tool_may_do_what_the_token_says_and_no_more",
    ),
    _of(
        87,
        "any Execution Approval will do, and policy cannot decide",
        f"{EXECUTION}::test_approvals_that_open_nothing",
        f"{EXECUTION}::test_what_waits_for_a_human",
    ),
    _of(88, "a cancellation cleans nothing up", f"{ITEM}::test_cleanup_follows_what_was_started"),
    # --- Memberships ---
    _of(
        89,
        "a replaced Coordinator that returns as a Worker is Coordinator again",
        f"{STATE}::test_a_replaced_coordinator_that_comes_back_as_a_worker_is_one",
    ),
    _of(
        90,
        "any change of a Membership hides what was seen before",
        f"{MEMBERS}::test_a_change_never_hides_what_was_seen_unless_stated",
    ),
    _of(
        91,
        "a provisional Membership neither ends nor brings a Context Package",
        f"{MEMBERS}::test_a_provisional_membership_has_all_it_needs",
        f"{MEMBERS}::test_a_provisional_end_is_cut_to_what_policy_allows",
    ),
    _of(
        92,
        "Memberships never end by themselves and have no scopes",
        f"{MEMBERS}::test_a_member_that_owes_nothing_leaves_after_a_while",
        f"{MEMBERS}::test_scopes_are_given_or_the_roles",
    ),
    # --- policy, archive, extensions ---
    _of(
        93,
        "the Policy Log knows of overrides only",
        f"{FOUNDING}::test_every_group_has_a_policy_log_from_its_first_event",
        f"{MESSAGES}::test_a_redaction_is_in_the_policy_log",
        "node/test_life.py::test_a_changed_policy_becomes_a_new_version_in_the_log",
    ),
    _of(
        94,
        "a snapshot is believed about the Policy Log and the state",
        "authority/test_organization_archival.py::test_a_snapshot_that_tells_something_else_archives_nothing",
    ),
    _of(
        95,
        "usage is added to an archived Group",
        f"{STATE}::test_an_archived_group_takes_no_usage_that_comes_late",
        "authority/test_organization_archival.py::test_nothing_is_added_to_an_archived_group",
    ),
    Fault(
        96,
        "a Command over two cooperation limits cannot pass, since it cites one Grant",
        reason="holds here too: the normative Command has one place for a Grant, and a Grant passes one limit once "
        "(R-20-13); such a Command is refused, and goes through once it is over one limit only",
    ),
    _of(
        97,
        "clarifications, repeated and circular decompositions have no bounds",
        f"{MESSAGES}::test_open_clarifications_are_bounded",
        f"{ITEM}::test_duplicate_decomposition_is_noted_then_refused",
        f"{ITEM}::test_dependencies_close_no_cycle",
        f"{LINEAGE}::test_no_ancestor_becomes_a_child",
    ),
    _of(
        98,
        "extensions are compared by their whole version, and none can be added or pinned",
        f"{ORGANIZATION}::test_an_approved_profile_is_registered_once",
        f"{ORGANIZATION}::test_a_group_pins_the_major_versions_of_critical_profiles",
        f"{ENVELOPE}::test_a_well_formed_kind_that_no_profile_lists_is_refused",
    ),
    # --- cost ---
    _of(
        99,
        "verifying one Command costs more with every key in the Registry",
        f"{COST}::test_a_command_costs_the_same_with_many_keys",
        "trust/test_registry.py::test_resolution_costs_the_same_with_many_keys",
    ),
    _of(
        100,
        "every Command costs the whole state of the Organization",
        f"{COST}::test_a_command_costs_the_same_in_a_long_log_and_beside_many_groups",
    ),
    _of(
        101,
        "every Event is rendered and signed anew for every subscriber",
        f"{COST}::test_an_event_is_rendered_once_for_all_who_get_it",
    ),
    _of(
        102,
        "every frame loads the frame schema again",
        f"{COST}::test_a_frame_is_read_without_loading_a_schema",
    ),
    _of(
        103,
        "the budget ledger is built anew for every Command",
        f"{COST}::test_usage_costs_the_same_with_many_accounts",
    ),
    _of(
        104,
        "a rate limit reads all Events of the Group",
        f"{COST}::test_the_rate_is_counted_without_looking_at_the_log",
    ),
    Fault(
        105,
        "one writer serves all Groups of the Organization",
        reason="holds here too, by design: one file has one writer; Commands of all Groups that wait share its commit "
        "(store/test_commit.py), and what one costs does not grow (99 to 104)",
    ),
    # --- release state ---
    _of(
        106,
        "it was built against an earlier revision of the protocol",
        "conformance/test_bundles.py::test_the_published_bundle_passes",
        "protocol/test_schemas_differential.py::test_all_22_schemas_load_by_id_and_resolve_offline",
    ),
)
