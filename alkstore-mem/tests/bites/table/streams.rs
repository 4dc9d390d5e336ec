//! Engines that break a rule of streams, and of notify and listen.

use super::*;

pub(super) fn streams() -> Vec<Broken> {
    vec![
        broken(
            "an offset is reused after a trim",
            |_| Arc::new(ReusesOffsets::default()),
            &["s7_offsets_are_not_reused_after_a_trim_of_everything"],
        ),
        broken(
            "many events are appended one by one",
            |_| Arc::new(AppendsOneByOne),
            &["s4_publishers_at_once_leave_no_gap"],
        ),
        broken(
            "an event appears behind a reader",
            |_| Arc::new(ShowsLate::default()),
            &["s8_no_reader_skips_an_event_while_several_publish"],
        ),
        broken(
            "a subscription skips between pages",
            |_| Arc::new(SkipsBetweenPages),
            &["s32_a_subscription_yields_what_was_and_then_what_comes"],
        ),
        broken(
            "a saved offset goes backward",
            |_| Arc::new(LosesPlace(Place::Backward)),
            &["s18_saving_never_goes_backward"],
        ),
        broken(
            "an offset beyond the head is saved",
            |_| Arc::new(LosesPlace(Place::BeyondHead)),
            &["s19_no_place_beyond_the_head_is_saved"],
        ),
        broken(
            "a rewind beyond the head is taken",
            |_| Arc::new(LosesPlace(Place::RewindBeyondHead)),
            &["s19_no_place_beyond_the_head_is_saved"],
        ),
        broken(
            "a rewind goes forward only",
            |_| Arc::new(LosesPlace(Place::ForwardOnly)),
            &["s21_rewind_is_the_way_back"],
        ),
        broken(
            "an unknown consumer is forgotten",
            |_| Arc::new(LosesPlace(Place::ForgetsUnknown)),
            &["s24_a_forgotten_consumer_starts_anew"],
        ),
        broken(
            "reading saves",
            |_| Arc::new(LosesPlace(Place::SavesByItself)),
            &[
                "s22_a_consumer_reads_what_lies_after_its_place",
                "s23_nothing_is_saved_unless_it_is_said",
                "s34_two_subscriptions_of_one_consumer_both_get_every_event",
            ],
        ),
        broken(
            "a trim beyond the head is refused",
            |_| Arc::new(RefusesTrimBeyondHead),
            &["s26_a_trim_beyond_the_head_trims_everything_there_is"],
        ),
        broken(
            "a trim keeps its horizon",
            |_| {
                Edits { horizon: |offset| (offset.get() - 1).try_into().unwrap_or(offset), ..NONE }
                    .layer()
            },
            &["s25_a_trim_keeps_the_offsets_of_what_remains"],
        ),
        broken(
            "lag counts what was trimmed",
            |_| Edits { streams: |all| lag_counts_trimmed(all), ..NONE }.layer(),
            &["s30_lag_counts_the_retained_events_after_a_place"],
        ),
        broken(
            "a stream with a consumer alone isn't listed",
            |_| Edits { streams: |all| all.retain(|stream| stream.last.get() > 0), ..NONE }.layer(),
            &["s31_the_list_has_every_stream_published_to_or_consumed"],
        ),
        broken(
            "a stream's key is lost",
            |_| Edits { event: |event| event.key = None, ..NONE }.layer(),
            &["s2_an_event_comes_back_as_it_was_published"],
        ),
        broken(
            "an event of the same key replaces the one before",
            |_| {
                Edits {
                    read: |events| {
                        let all = events.clone();
                        events.retain(|event| {
                            event.key.is_none()
                                || all.iter().rfind(|e| e.key == event.key).map(|e| e.offset)
                                    == Some(event.offset)
                        });
                    },
                    ..NONE
                }
                .layer()
            },
            &["s13_a_key_neither_orders_nor_deduplicates"],
        ),
    ]
}

pub(super) fn notify() -> Vec<Broken> {
    vec![
        broken(
            "equal messages of a transaction are folded",
            |_| Arc::new(FoldsMessages::new(Fold::EqualInTx)),
            &[
                "n4_equal_messages_are_never_folded",
                "x29_staged_messages_arrive_each_in_order_at_commit",
            ],
        ),
        broken(
            "equal messages in a row are folded",
            |_| Arc::new(FoldsMessages::new(Fold::EqualInARow)),
            &["n4_equal_messages_are_never_folded"],
        ),
        broken(
            "messages of a transaction arrive backwards",
            |_| Arc::new(FoldsMessages::new(Fold::Backwards)),
            &["x29_staged_messages_arrive_each_in_order_at_commit"],
        ),
        broken(
            "a commit loses its messages",
            |_| Arc::new(FoldsMessages::new(Fold::Lost)),
            &[
                "n3_a_message_is_delivered_at_commit",
                "x29_staged_messages_arrive_each_in_order_at_commit",
            ],
        ),
        broken(
            "a message is sent before the commit",
            |_| Arc::new(FoldsMessages::new(Fold::Early)),
            &["n3_a_message_is_delivered_at_commit", "n3_a_rolled_back_message_is_never_delivered"],
        ),
        broken(
            "a new listener hears the last message",
            |_| Arc::new(FoldsMessages::new(Fold::Replay)),
            &["n2_nothing_is_replayed"],
        ),
        broken(
            "a large message is lost",
            |_| Arc::new(FoldsMessages::new(Fold::LargeLost)),
            &["n6_a_payload_arrives_byte_for_byte_at_any_size"],
        ),
        broken(
            "a full listener drops the newest",
            |data| ListensBadly::layer(Ear::DropsNewest, data),
            &["n8_a_full_buffer_drops_the_oldest"],
        ),
        broken(
            "a full listener drops quietly",
            |data| ListensBadly::layer(Ear::DropsQuietly, data),
            &["n8_a_full_buffer_drops_the_oldest", "n8_a_buffer_holds_1024_messages_unless_told"],
        ),
        broken(
            "a listener is unbounded",
            |data| ListensBadly::layer(Ear::Unbounded, data),
            &[
                "n8_a_full_buffer_drops_the_oldest",
                "n8_a_buffer_holds_1024_messages_unless_told",
                "n9_a_buffer_holds_16_mib_unless_told",
            ],
        ),
        broken(
            "a listener outlives its store",
            |data| ListensBadly::layer(Ear::Outlives, data),
            &[
                "n14_a_listener_ends_when_its_store_is_closed",
                "n14_a_listener_ends_with_the_last_handle",
                "c50_listeners_and_subscriptions_end_at_close",
            ],
        ),
        broken(
            "one of many listeners hears",
            |data| ListensBadly::layer(Ear::OneOfMany, data),
            &[
                "n1_a_message_reaches_every_listener_of_its_channel",
                "n2_nothing_is_replayed",
                "n3_a_message_is_delivered_at_commit",
                "n4_equal_messages_are_never_folded",
                "n5_messages_come_in_their_notifiers_order",
                "n6_a_payload_arrives_byte_for_byte_at_any_size",
                "n8_a_full_buffer_drops_the_oldest",
                "n10_a_slow_listener_slows_nobody",
                "c43_a_wake_is_never_missed",
            ],
        ),
    ]
}
