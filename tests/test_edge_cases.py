"""Every input that a voice assistant must survive, and the tests that are named after it.

The table is kept true: each of its tests exists, and its name or that of its file says the input.
"""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

TESTS = Path(__file__).parent

# input: right behaviour -> file::test, the first of which is named after the input
EDGE_CASES = {
    "silence: no turn": [
        "audio/test_dialogue_real.py::test_60_s_of_silence_fan_noise_60_hz_hum_and_music_are_no_turn",
        "audio/test_dialogue_questions.py::test_silence_and_a_click_are_no_turn",
    ],
    "fan noise: no turn": [
        "audio/test_dialogue_real.py::test_60_s_of_silence_fan_noise_60_hz_hum_and_music_are_no_turn",
    ],
    "60 Hz hum: no turn": [
        "audio/test_dialogue_real.py::test_60_s_of_silence_fan_noise_60_hz_hum_and_music_are_no_turn",
    ],
    "cough before the first audio: the reply survives": [
        "audio/test_dialogue_interruptions.py::test_a_cough_before_the_first_audio_lets_the_reply_survive",
        "audio/test_dialogue_real.py::test_a_cough_before_the_first_audio_lets_the_reply_survive",
    ],
    "yes in half a second: answered": [
        "audio/test_dialogue_questions.py::test_yes_in_half_a_second_is_answered",
        "audio/test_dialogue_real.py::test_yes_in_half_a_second_is_answered",
    ],
    "stop mid-reply: silent in 300 ms, engine stopped": [
        "audio/test_dialogue_interruptions.py::"
        "test_stop_mid_reply_is_silent_within_300_ms_and_stops_the_engine",
        "audio/test_dialogue_real.py::test_stop_is_silent_within_300_ms",
    ],
    "own echo: no turn": [
        "audio/test_dialogue_real.py::test_own_echo_is_no_turn",
        "audio/test_dialogue_interruptions.py::test_own_echo_is_no_turn",
        "ui/test_listen_devices.py::test_its_own_echo_is_no_turn",
    ],
    "I'd like to (900 ms) know: one turn": [
        "audio/test_dialogue_pauses.py::test_id_like_to_900_ms_know_is_one_turn",
        "audio/test_dialogue_real.py::test_a_question_with_900_ms_of_thought_is_one_turn",
    ],
    "trailing um: waits at most 1 s": [
        "audio/test_dialogue_pauses.py::test_a_trailing_um_waits_at_most_a_second",
    ],
    "40 s monologue: bounded buffer, still right past Whisper's window": [
        "audio/test_dialogue_real.py::test_a_40_s_monologue_is_right_past_the_recognisers_window",
        "audio/test_dialogue_pauses.py::test_a_40_s_monologue_is_one_turn_in_bounded_memory",
    ],
    "speech resumed during an eager reply: one reply only": [
        "audio/test_dialogue_pauses.py::test_speech_resumed_during_an_eager_reply_gets_one_reply",
    ],
    "two barge-ins in 200 ms: no deadlock": [
        "audio/test_dialogue_interruptions.py::"
        "test_two_barge_ins_in_200_ms_end_with_the_last_one_answered",
        "audio/test_pipeline.py::test_turns_follow_each_other_after_stops",
    ],
    "8 kHz input: resampled": [
        "audio/test_voice_turn.py::test_8_44_1_and_48_khz_stereo_and_float_files_are_answered",
    ],
    "44.1 kHz input: resampled": [
        "audio/test_voice_turn.py::test_8_44_1_and_48_khz_stereo_and_float_files_are_answered",
        "audio/test_frames.py::test_any_rate_keeps_length_pitch_and_level",
    ],
    "48 kHz input: resampled": [
        "audio/test_voice_turn.py::test_8_44_1_and_48_khz_stereo_and_float_files_are_answered",
        "audio/test_soundcard.py::test_any_rate_comes_out_right",
    ],
    "stereo input: mixed": [
        "audio/test_voice_turn.py::test_8_44_1_and_48_khz_stereo_and_float_files_are_answered",
        "audio/test_frames.py::test_channels_are_averaged",
    ],
    "float input: scaled": [
        "audio/test_voice_turn.py::test_8_44_1_and_48_khz_stereo_and_float_files_are_answered",
        "audio/test_frames.py::test_float_past_full_scale_is_scaled_not_clipped",
    ],
    "no microphone: text works, clear message": [
        "audio/test_devices.py::test_no_microphone_is_said",
        "ui/test_listen.py::test_in_a_terminal_text_mode_begins_by_itself",
    ],
    "no speaker: text works, clear message": [
        "audio/test_devices.py::test_no_speaker_is_said",
        "ui/test_listen.py::test_a_device_that_cannot_be_had_is_one_line_that_offers_text",
    ],
    "no PortAudio: text works, clear message": [
        "ui/test_listen.py::test_no_portaudio_is_one_line_that_offers_text",
        "audio/test_devices.py::test_no_portaudio_is_said",
    ],
    "device unplugged mid-turn: recovers or says so": [
        "ui/test_listen_room.py::test_a_device_unplugged_mid_turn_and_put_back",
        "audio/test_dialogue_replies.py::test_a_loudspeaker_unplugged_mid_turn_leaves_the_words",
        "ui/test_listen_devices.py::test_devices_that_go_and_come_back",
    ],
    "plain http from another host: says why the microphone is missing": [
        "ui/web/test_voice.py::"
        "test_plain_http_from_another_host_says_why_the_microphone_is_missing",
    ],
    "permission denied: text works": [
        "ui/web/test_voice.py::test_permission_denied_is_told_and_typing_works",
    ],
    "page reloaded mid-reply: generation cancelled": [
        "ui/web/test_conversation.py::test_a_page_reloaded_mid_reply_cancels_the_turn",
    ],
    "two visitors: queue with position": [
        "ui/web/test_conversation.py::test_two_visitors_queue_and_the_second_sees_its_place",
        "ui/test_visitors.py::test_two_visitors_never_decode_at_once",
    ],
    "two visitors: no crossed audio": [
        "ui/test_floor.py::test_two_visitors_hear_their_own_answers_only",
    ],
    "no punctuation for 60 tokens: cut at a space": [
        "audio/test_sentences.py::test_no_punctuation_for_60_tokens_is_cut_at_a_space",
    ],
    "empty reply: the turn closes": [
        "audio/test_dialogue_replies.py::test_an_empty_or_emoji_only_reply_closes_the_turn",
        "audio/test_pipeline.py::test_a_reply_without_a_word_to_say_closes_the_turn",
    ],
    "emoji-only reply: the turn closes": [
        "audio/test_dialogue_replies.py::test_an_empty_or_emoji_only_reply_closes_the_turn",
    ],
    "end token first: the turn closes": [
        "audio/test_dialogue_replies.py::test_an_end_token_first_closes_the_turn",
        "engine/test_generate.py::test_eos_ends_the_reply_and_is_no_text",
    ],
    "broken UTF-8 across tokens: held": [
        "engine/test_generate.py::test_broken_utf_8_across_tokens_is_held",
        "engine/test_generate.py::test_an_incomplete_character_at_the_end_is_left_out",
    ],
    "slow client: oldest microphone frames dropped and counted": [
        "ui/test_hearing.py::test_a_slow_client_loses_its_oldest_frames_and_they_are_counted",
        "ui/test_telemetry.py::test_what_a_slow_client_loses_is_counted",
    ],
    "engine switched mid-reply: applies to the next turn, both labelled": [
        "ui/test_floor.py::test_an_engine_switched_mid_reply_answers_the_next_turn",
        "audio/test_dialogue_interruptions.py::"
        "test_an_engine_switched_mid_reply_is_used_for_the_next_turn",
    ],
    "full context: oldest turns trimmed and said so": [
        "engine/test_conversation.py::test_a_full_context_trims_the_oldest_turns_and_says_so",
        "ui/test_session.py::test_turns_left_out_of_the_context_are_said",
    ],
    "one-hour soak: flat memory": [
        "audio/test_dialogue_controls.py::test_a_one_hour_soak_keeps_memory_flat",
    ],
    "frames with NaN: refused, connection survives": [
        "audio/test_dialogue_replies.py::test_frames_with_nan_are_silence",
        "ui/test_socket.py::"
        "test_odd_byte_counts_too_many_bytes_and_nan_are_refused_and_the_connection_survives",
    ],
    "odd byte counts: refused, connection survives": [
        "ui/test_socket.py::"
        "test_odd_byte_counts_too_many_bytes_and_nan_are_refused_and_the_connection_survives",
        "audio/test_frames.py::test_odd_number_of_bytes_is_refused",
    ],
    "too many bytes: refused, connection survives": [
        "ui/test_socket.py::"
        "test_odd_byte_counts_too_many_bytes_and_nan_are_refused_and_the_connection_survives",
    ],
}


def functions_in(file: str) -> set[str]:
    body = ast.parse((TESTS / file).read_text(encoding="utf-8")).body
    return {node.name for node in body if isinstance(node, ast.FunctionDef)}


def test_there_are_38() -> None:
    assert len(EDGE_CASES) == 38


@pytest.mark.parametrize("case", EDGE_CASES)
def test_its_tests_exist_and_the_first_is_named_after_it(case: str) -> None:
    for place in EDGE_CASES[case]:
        file, _, name = place.partition("::")
        assert name in functions_in(file), place
    named = EDGE_CASES[case][0].partition("::")[2]
    given = case.partition(":")[0].lower()
    plain = "".join(char if char.isalnum() else " " for char in given.replace("'", ""))
    words = [word for word in plain.split() if word not in ("input", "s", "first", "the")]
    singular = [word.rstrip("s") for word in words]
    assert all(word in named for word in singular), (singular, named)
